"""The exception that ends a call of `Trainer.train` after a stop.

Without it, the script would continue after `trainer.train()` and save a partly trained model.
"""

from typing import Any

from infrastructure.core.errors import RunStoppedError
from infrastructure.core.exit_codes import ExitCode, exit_code_of_signal
from infrastructure.core.notebook import in_notebook_kernel


def exception_of_stop(signal_name: str | None, text: str) -> BaseException:
    """Return the exception that ends `Trainer.train` after a stop.

    It is KeyboardInterrupt after Ctrl-C. After another stop it is SystemExit with the exit code of
    the stop. In a notebook's kernel it is RunStoppedError, because a kernel does not exit.

    Args:
        signal_name: the signal that stopped the training. None: a deadline or a hook did.
        text: says how to resume.
    """
    if signal_name == "SIGINT":
        return KeyboardInterrupt(text)
    if in_notebook_kernel():
        return RunStoppedError(text)
    if signal_name is None:
        return SystemExit(ExitCode.CAN_RESUME)
    return SystemExit(exit_code_of_signal(signal_name))


def leave_training(trainer: Any) -> None:
    """Undo changes that a Trainer leaves behind after an exception, so that it can train again."""
    if hasattr(trainer, "is_in_train"):
        trainer.is_in_train = False
    handle = getattr(trainer, "neftune_hook_handle", None)
    if getattr(trainer, "neftune_noise_alpha", None) is not None and handle is not None:
        handle.remove()
