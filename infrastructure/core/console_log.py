"""The console output of Python's logging: on standard error, in plain text, with secrets masked.

Log records of libraries are shown only if something failed. At the level DEBUG all of them are
shown, and each line names its logger.
"""

import logging
import os
import sys
import sysconfig
from pathlib import Path

from infrastructure.core.console import RED, YELLOW, styled, write_above_bar
from infrastructure.core.redact import RedactingFormatter

# Libraries that warn about parts of themselves that Temper does not use, most of them on import.
CHATTY_LOGGERS = (
    "torchao",
    "torch.utils._pytree",
    "httpx",
    "transformers.integrations.bitsandbytes",  # warns of eetq if no layer has suitable sizes
    "transformers.generation.stopping_criteria",  # about cut answers; Temper reports them
)
# It reports each retried request, through huggingface_hub's own handler.
RETRIES = "huggingface_hub.utils._http"
# It warns through its own handler, created on import, at the level of this variable.
TRANSFORMERS, ITS_LEVEL = "transformers", "TRANSFORMERS_VERBOSITY"
OURS = ("infrastructure", "colab", "temper", "__main__")
LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib")}
)
WARNINGS = "py.warnings"  # logger of `warnings.warn`
STYLES = {logging.WARNING: YELLOW, logging.ERROR: RED, logging.CRITICAL: RED}


class ForPeople(logging.Formatter):
    """A formatter that shows only a log record's text, with `warning:` or `error:` before it."""

    def __init__(self) -> None:
        super().__init__()
        self._text = RedactingFormatter("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = self._text.format(record)
        if record.levelno < logging.WARNING:
            return text
        style = STYLES.get(record.levelno, "")
        return f"{styled(f'{record.levelname.lower()}:', style, sys.stderr)} {text}"


class ConsoleHandler(logging.Handler):
    """A handler that writes to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_above_bar(self.format(record), sys.stderr)
        except Exception:
            self.handleError(record)


SHOWN = "is_shown"  # attribute of a record that is already on the screen


def start_console_log(level: str) -> None:
    """Show records of at least `level`, replacing earlier console handlers."""
    handler = ConsoleHandler()
    if level == "DEBUG":
        handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(ForPeople())
        handler.addFilter(is_for_people)
        _quiet_transformers()
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    quiet_libraries()
    if level == "DEBUG":
        logging.getLogger(RETRIES).setLevel(logging.NOTSET)


def _quiet_transformers() -> None:
    """Hide the warnings of transformers from the user, like those of other libraries."""
    handlers = logging.getLogger(TRANSFORMERS).handlers
    for handler in handlers:
        if type(handler) is logging.StreamHandler:  # its own; others were added by other code
            handler.addFilter(is_for_people)
    if not handlers:
        os.environ.setdefault(ITS_LEVEL, "error")


def is_for_people(record: logging.LogRecord) -> bool:
    """Return whether the console shows a log record.

    The console shows records of Temper and of user code, and errors of libraries, but not their
    warnings, which are meant for developers. A record marked as `SHOWN` is already on the screen
    and goes only to log files.
    """
    if getattr(record, SHOWN, False):
        return False
    if record.levelno >= logging.ERROR or record.name.partition(".")[0] in OURS:
        return True
    where = record.getMessage() if record.name == WARNINGS else record.pathname
    return not where.startswith(LIBRARIES)


def quiet_libraries() -> None:
    """Let the loggers of verbose libraries report only errors."""
    for chatty in (*CHATTY_LOGGERS, RETRIES):
        logging.getLogger(chatty).setLevel(logging.ERROR)
