"""What Python's logging shows to a person: standard error, in words, without secrets.

Libraries are heard when something failed; all that they log is shown at the level DEBUG, where each
line names its logger.
"""

import logging
import os
import sys
import sysconfig
from pathlib import Path

from infrastructure.core.console import RED, YELLOW, styled, write_above_bar
from infrastructure.core.redact import RedactingFormatter

# Libraries that warn, on import, of parts of themselves that nobody here asks for.
CHATTY_LOGGERS = (
    "torchao",
    "torch.utils._pytree",
    "httpx",
    "transformers.integrations.bitsandbytes",  # warns of eetq where no layer has such sizes
    "transformers.generation.stopping_criteria",  # of answers that are cut; we tell of these
)
# It tells of each request that is tried again, through a handler of huggingface_hub's own.
RETRIES = "huggingface_hub.utils._http"
# It warns through a handler of its own, made when it is imported, at the level of this variable.
TRANSFORMERS, ITS_LEVEL = "transformers", "TRANSFORMERS_VERBOSITY"
OURS = ("infrastructure", "colab", "temper", "__main__")
LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib")}
)
WARNINGS = "py.warnings"  # what `warnings.warn` says
STYLES = {logging.WARNING: YELLOW, logging.ERROR: RED, logging.CRITICAL: RED}


class ForPeople(logging.Formatter):
    """A record in words: what is wrong begins with `warning:` or `error:`."""

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
    """Writes to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_above_bar(self.format(record), sys.stderr)
        except Exception:
            self.handleError(record)


SHOWN = "is_shown"  # attribute of a record


def start_console_log(level: str) -> None:
    """Show records of at least `level`; replaces what showed them before."""
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
    """What it warns of is shown to no person, as what other libraries warn of."""
    handlers = logging.getLogger(TRANSFORMERS).handlers
    for handler in handlers:
        if type(handler) is logging.StreamHandler:  # its own; others have put theirs there for all
            handler.addFilter(is_for_people)
    if not handlers:
        os.environ.setdefault(ITS_LEVEL, "error")


def is_for_people(record: logging.LogRecord) -> bool:
    """Whether a record is of the project or of somebody's own code, or says that something failed;
    what libraries warn of each other is for those who write them. What a line on the screen has
    said already (`SHOWN`) is for log files alone."""
    if getattr(record, SHOWN, False):
        return False
    if record.levelno >= logging.ERROR or record.name.partition(".")[0] in OURS:
        return True
    where = record.getMessage() if record.name == WARNINGS else record.pathname
    return not where.startswith(LIBRARIES)


def quiet_libraries() -> None:
    """Let the chatty ones tell errors only."""
    for chatty in (*CHATTY_LOGGERS, RETRIES):
        logging.getLogger(chatty).setLevel(logging.ERROR)
