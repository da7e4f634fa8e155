#!/usr/bin/env bash
# The door: see infrastructure/deployment/launch_training.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/infrastructure/deployment/launch_training.sh" "$@"
