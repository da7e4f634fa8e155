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


@pytest.mark.usefixtures("restore_logging")
def test_the_name_of_a_logger_is_no_secret_s_key(capsys: pytest.CaptureFixture[str]) -> None:
    start_console_log("WARNING")
    logging.getLogger("models.special_token").warning("vocabulary was resized")
    logging.getLogger("vault.api_key").warning("api_key=abcdefgh123 was refused, not read again")
    try:
        raise ValueError("password=letmein12345")
    except ValueError:
        logging.getLogger("auth.password").exception("signing in failed")
    first, second, third, *traceback = capsys.readouterr().err.splitlines()
    assert first == "WARNING models.special_token: vocabulary was resized"
    assert second == "WARNING vault.api_key: api_key=*** was refused, not read again"
    assert third == "ERROR auth.password: signing in failed"
    assert traceback[-1] == "ValueError: password=***"
