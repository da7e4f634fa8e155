#!/usr/bin/env bash
# One command from a fresh clone to a trained model: create the environment, check the machine, train.
#   launch_training.sh [--with-unsloth] [arguments of `temper train`]
# Without arguments, train the embedded model on the sample data. The exit code is that of temper.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
root="$(cd "$here/../.." && pwd -P)"

environment_flags=()
training_flags=()
for argument in "$@"; do
    case "$argument" in
        --with-unsloth) environment_flags+=("$argument") ;;
        *) training_flags+=("$argument") ;;
    esac
done

"$here/environment.sh" ${environment_flags[@]+"${environment_flags[@]}"}
unset PYTHONDONTWRITEBYTECODE # if a container sets it, each start would compile PyTorch again
exec "$root/.venv/bin/temper" train ${training_flags[@]+"${training_flags[@]}"}
