"""`temper quantum compare`: what the quantum step is worth, as a table."""

import json
import sys

from infrastructure.commands.train import DONE, ended
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.quantum_compare import compared, table_of
from infrastructure.deployment.signals import interrupt_on_signals
from infrastructure.training.parallel.membership import followers_dismissed


def compare(config: DeploymentConfig, as_json: bool) -> int:
    """Train, tell a line for each training, and print the table; see `ended` for the exit code.

    Raises:
        ValueError: the training cannot be started as it is configured.
    """

    def say(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    with interrupt_on_signals(), followers_dismissed():
        rows, stopped = compared(config, say)
    if stopped is not None:
        say("Stopped: the same command goes on with the comparison")
        return ended(stopped)
    print(json.dumps({"rows": rows}) if as_json else "\n".join(table_of(rows)))
    return DONE
