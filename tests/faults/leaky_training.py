"""A real run whose surroundings are full of secrets and whose hooks say them aloud.

    python -m tests.faults.leaky_training [--careless] train …      (then as the `temper` command)

`--careless` is the mutant: nothing is masked.
"""

import logging
import os
import sys
from typing import Any

from infrastructure.core import redact

if "--careless" in sys.argv:  # before anything takes the functions by their names
    sys.argv.remove("--careless")
    redact.redact = redact.redact_shapes = redact.redact_urls = lambda text: text
    redact.redact_mapping = dict

from infrastructure.commands import main as cli
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

SPOKEN = os.environ.get("SPOKEN_SECRET", "")


class Talkative(Observer):
    """Names a metric after a secret, logs it, and at last dies of it."""

    def eval_end(self, state: TrainingState) -> None:
        logging.getLogger("somebody").warning("logged in with %s", SPOKEN)
        state.evaluation[f"eval_{SPOKEN}"] = 1.0
        state.metrics[f"rate_{SPOKEN}"] = 1.0
        print(f"said by somebody else: {len(SPOKEN)}")

    def step_end(self, state: TrainingState) -> None:
        if state.step == 4:
            raise ConnectionError(f"401 for https://me:{SPOKEN}@hub.example/api?token={SPOKEN}")


def main() -> int:
    observers = TrainingDeployment._observers

    def with_one_more(*arguments: Any) -> list[Any]:
        return [Talkative(), *observers(*arguments)]

    TrainingDeployment._observers = with_one_more  # type: ignore[method-assign]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
