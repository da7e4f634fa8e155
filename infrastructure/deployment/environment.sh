#!/usr/bin/env bash
# Create the environment in .venv; if it is ready, print nothing and take no time.
#   environment.sh [--with-unsloth] [--with-dev] [--colab [--without-torch]] [--check]
# It uses a Python of version 3.11 or newer (TEMPER_PYTHON selects one), and installs with uv if it
# is available, else with pip (TEMPER_INSTALLER selects one). environment.py does the rest.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"

run_installer() { # PYTHON ARGUMENTS…; -P and -S hide this folder and site-packages
    local python="$1"
    shift
    PYTHONPATH="$root" PYTHONDONTWRITEBYTECODE=1 \
        "$python" -P -S -m infrastructure.deployment.environment "$@"
}

find_python() { # print the first that can create environments, or the reasons why none can
    local seen="" answer candidate
    local candidates=(python3.13 python3.12 python3.11 python3 python)
    if [ -n "${TEMPER_PYTHON:-}" ]; then candidates=("$TEMPER_PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        answer="$("$candidate" -I -c 'import sys
version = sys.version_info[:2]
if version < (3, 11):
    print("is %d.%d" % version)
else:
    try:
        import ensurepip, venv
        print("good")
    except ImportError:
        print("has no venv module (Debian: apt install python%d.%d-venv)" % version)' 2>/dev/null)" ||
            continue # a stub without a program, as version managers create them
        if [ "$answer" = good ]; then
            echo "$candidate"
            return
        fi
        seen+="; $candidate $answer"
    done
    echo "temper needs Python 3.11 or newer${seen:-; ${TEMPER_PYTHON:-python3} does not answer}:" \
        "install one, or name it in TEMPER_PYTHON" >&2
    return 1
}

environment="$root/.venv"
for argument in "$@"; do
    if [ "$argument" = --colab ]; then environment="${environment/%.venv/.venv-colab}"; fi
    if [ "$argument" = --without-torch ]; then environment="$root/.venv-colab-light"; fi
    if [ "$argument" = --check ]; then only_check=yes; fi
done
if [ -x "$environment/bin/python" ] && run_installer "$environment/bin/python" "$@" --check 2>/dev/null; then
    exit 0
fi
if [ "${only_check:-no}" = yes ]; then exit 1; fi
python="$(find_python)"
run_installer "$python" "$@"
