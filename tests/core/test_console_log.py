"""What logging shows to a person."""

import logging

import pytest

from infrastructure.core.console_log import start_console_log


@pytest.mark.usefixtures("restore_logging")
def test_records_are_shown_once_from_their_level_on_and_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start_console_log("INFO")
    start_console_log("WARNING")
    logger = logging.getLogger("somebody")
    logger.info("not shown")
    logger.warning("see https://me:Pa55word@host/x")
    logging.getLogger("httpx").warning("GET this and that")
    assert capsys.readouterr().err == "WARNING somebody: see https://***@host/x\n"
