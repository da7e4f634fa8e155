#!/usr/bin/env bash
# One command from a fresh clone to a trained model: makes the environment, checks the machine, trains.
#   launch_training.sh [--with-unsloth] [anything that `temper train` takes]
# Without arguments it trains the embedded model on the sample data. The exit code is temper's.
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
unset PYTHONDONTWRITEBYTECODE # where a container sets it, each start would compile PyTorch anew
exec "$root/.venv/bin/temper" train ${training_flags[@]+"${training_flags[@]}"}
