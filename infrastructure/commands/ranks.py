"""Training in several processes. The process of the command starts and supervises them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import SFT
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.console import show
from infrastructure.core.launcher import is_launched


def on_several_processes(
    config: DeploymentConfig,
    words: Sequence[str],
    stdin: bytes | None = None,
    before_line: Callable[[Path], None] = do_nothing,
) -> int | None:
    """Train in several processes if configured, each with the command line `words`.

    Args:
        words: the command line.
        stdin, before_line: see `Agent`.

    Returns:
        The exit code; None if no processes were started because one is enough, or because this
        process is itself one of several.

    Raises:
        ConfigurationError: if there are fewer GPUs than processes.
        StopSignal: if a signal came before the run could stop cleanly.
    """
    if config.num_processes == 1 or config.training.method != SFT or is_launched():
        return None
    from infrastructure.training.core.precision import choose_device
    from infrastructure.training.distributed.launch import Agent
    from infrastructure.training.trainer_factory import num_processes_for, show_gpus

    show_gpus(config)
    size = num_processes_for(config, choose_device(config.device))
    if size == 1:
        return None
    agent = Agent(words, size, stdin=stdin, show_end=show, before_line=before_line)
    return agent.run()
