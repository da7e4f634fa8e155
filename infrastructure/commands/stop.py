"""`temper train --detach` and `temper stop`. Loads no torch."""

from collections.abc import Collection
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import RunFailedError
from infrastructure.deployment import detached
from infrastructure.monitoring.records.run_list import find_run_path
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.training.data.defaults import make_ready

DONE, FAILED = 0, 1


def train(config: DeploymentConfig, accept: Collection[str]) -> int:
    """Start a training that outlives this shell, and show what it says until it has a run.

    Returns:
        0 as soon as it trains; the exit code of the process where it ended before.

    Raises:
        ValueError: the configuration cannot be carried out, or the same is prepared already.
    """
    make_ready(config)
    same = None if config.new_run else detached.preparing_the_same(config)
    if same is not None:
        raise ValueError(
            f"the same is being prepared by {same.trainer}; wait for it, end it with temper stop,"
            " or train another beside it with --new-run"
        )
    training = detached.start(config, accept)
    try:
        run_path = detached.follow(training)
    except RunFailedError:  # its last line has told why
        return training.exit_code()
    except KeyboardInterrupt:
        print(f"\nIt is prepared further by {training.trainer}; temper stop ends it")
        return DONE
    trainer = read_trainer(run_path)
    if trainer is not None and trainer.is_alive:
        print(f"Run {run_path.name} is trained by {trainer}, whatever becomes of this shell")
        print(*detached.how_to_look_on(run_path), sep="\n")
    return DONE


def stop(run: str | None, output_dir: Path) -> int:
    """Let a training save and stop; 1 where it has not within some minutes.

    Raises:
        ValueError: there is no such run, or it cannot be stopped from here.
    """
    waiting = detached.preparing(output_dir) if run is None else []
    if waiting:
        return DONE if detached.stop_preparing(waiting[-1]) else FAILED
    return DONE if detached.stop(find_run_path(run, output_dir)) else FAILED
