"""What Python's logging shows to a person: standard error, without secrets."""

import logging

from infrastructure.core.redact import RedactingFormatter

# Libraries that warn, on import, of parts of themselves that nobody here asks for.
CHATTY_LOGGERS = ("torchao", "torch.utils._pytree", "httpx")


def start_console_log(level: str) -> None:
    """Show records of at least `level`; replaces what showed them before."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    quiet_libraries()


def quiet_libraries() -> None:
    """Let the chatty ones tell errors only."""
    for chatty in CHATTY_LOGGERS:
        logging.getLogger(chatty).setLevel(logging.ERROR)
