"""What logging shows to a person."""

import logging
import os
import sys
import sysconfig

import pytest

from infrastructure.core.console_log import start_console_log


def test_records_are_shown_once_from_their_level_on_and_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start_console_log("INFO")
    start_console_log("WARNING")
    logger = logging.getLogger("somebody")
    logger.info("not shown")
    logger.warning("see https://me:Pa55word@host/x")
    logging.getLogger("httpx").warning("GET this and that")
    assert capsys.readouterr().err == "warning: see https://***@host/x\n"


def test_the_name_of_a_logger_is_no_secret_s_key(capsys: pytest.CaptureFixture[str]) -> None:
    start_console_log("WARNING")
    logging.getLogger("models.special_token").warning("vocabulary was resized")
    logging.getLogger("vault.api_key").warning("api_key=abcdefgh123 was refused, not read again")
    try:
        raise ValueError("password=letmein12345")
    except ValueError:
        logging.getLogger("auth.password").exception("signing in failed")
    first, second, third, *traceback = capsys.readouterr().err.splitlines()
    assert first == "warning: vocabulary was resized"
    assert second == "warning: api_key=*** was refused, not read again"
    assert third == "error: signing in failed"
    assert traceback[-1] == "ValueError: password=***"


@pytest.mark.parametrize("is_imported", [True, False])
def test_transformers_own_handler_shows_no_warning(
    is_imported: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    library = logging.getLogger("transformers")
    of_others = logging.NullHandler()
    monkeypatch.setattr(library, "handlers", [handler, of_others] if is_imported else [])
    monkeypatch.setattr(library, "propagate", False)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "")
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY")
    start_console_log("INFO")
    assert os.environ.get("TRANSFORMERS_VERBOSITY") == (None if is_imported else "error")
    if not is_imported:
        return
    place = f"{sysconfig.get_path('purelib')}/transformers/masking.py"
    for level, text in ((logging.WARNING, "a mask is made"), (logging.ERROR, "no mask")):
        library.handle(logging.LogRecord("transformers.x", level, place, 1, text, None, None))
    assert capsys.readouterr().err == "no mask\n"
    assert of_others.filters == []


def test_what_libraries_warn_of_is_for_those_who_debug(capsys: pytest.CaptureFixture[str]) -> None:
    """huggingface_hub says which request it tries again, torch.jit what it cannot trace."""
    library = compile(
        "log.warning('Retrying in 1s [Retry 1/5]')\nlog.error('the disk is gone')",
        f"{sysconfig.get_path('purelib')}/some_hub/http.py",
        "exec",
    )
    names = {"log": logging.getLogger("some_hub.http")}
    start_console_log("INFO")
    exec(library, names)
    traced = f"{sysconfig.get_path('purelib')}/torch/jit/x.py:3: TracerWarning: a tensor becomes"
    logging.getLogger("py.warnings").warning("%s", traced)
    logging.getLogger("my_part").warning("of my own")
    logging.getLogger("infrastructure.x").info("in words")
    assert capsys.readouterr().err == "error: the disk is gone\nwarning: of my own\nin words\n"
    start_console_log("DEBUG")
    exec(library, names)
    assert "WARNING some_hub.http: Retrying" in capsys.readouterr().err


def test_requests_that_are_tried_again_stay_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """huggingface_hub has a handler of its own, past whatever the root logger shows."""
    own = logging.StreamHandler(sys.stderr)
    hub = logging.getLogger("huggingface_hub")
    hub.addHandler(own)
    try:
        for level, is_shown in (("INFO", False), ("DEBUG", True)):
            start_console_log(level)
            logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s")
            assert ("Retrying" in capsys.readouterr().err) == is_shown
    finally:
        hub.removeHandler(own)
        start_console_log("INFO")
