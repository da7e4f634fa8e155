"""What Python's logging shows to a person: standard error, without secrets."""

import logging

from infrastructure.core.manners import quiet_libraries
from infrastructure.core.redact import RedactingFormatter


def start_console_log(level: str) -> None:
    """Show records of at least `level`; replaces what showed them before."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    quiet_libraries()
