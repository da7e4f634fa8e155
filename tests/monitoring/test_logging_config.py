"""The run's log: JSON lines, no secrets, bounded, and never in the way."""

import json
import logging
from pathlib import Path
from typing import Any

from infrastructure.core.line_file import RotatingLineFile, rotated_files
from infrastructure.monitoring.logging_config import TRAINING_FILE, JsonLinesHandler, RunLog

logger = logging.getLogger("infrastructure.tests.logging")
TOKEN = "hf_" + "A1b2C3d4E5" * 3


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / TRAINING_FILE).read_text().splitlines()]


def test_what_is_logged_between_start_and_stop_is_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    logger.warning("before")
    log.start()
    logger.warning("step %d was slow", 7)
    logging.getLogger("another.library").warning("not ours")
    log.stop()
    logger.warning("after")
    (line,) = lines(tmp_path)
    assert line["message"] == "step 7 was slow"
    assert (line["level"], line["logger"]) == ("WARNING", "infrastructure.tests.logging")
    assert line["time"] > 1e9


def test_an_exception_has_its_traceback(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.start()
    try:
        raise ValueError(f"token={TOKEN}")
    except ValueError:
        logger.exception("it failed with %s", TOKEN)
    log.stop()
    (line,) = lines(tmp_path)
    assert "Traceback" in line["traceback"]
    assert TOKEN not in json.dumps(line)


def test_what_happens_is_written_with_its_numbers(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.start()
    log.write({"message": "evaluated", "step": 20, "eval_loss": float("nan"), "token": TOKEN})
    log.stop()
    (line,) = lines(tmp_path)
    assert line.pop("time") > 1e9
    assert line == {
        **{"message": "evaluated", "step": 20, "eval_loss": "NaN", "token": "***"},
        **{"level": "INFO", "logger": "infrastructure.run"},
    }


def test_files_are_bounded(tmp_path: Path) -> None:
    handler = JsonLinesHandler(RotatingLineFile(tmp_path / "a.jsonl", max_bytes=1000, keep=2))
    for number in range(100):
        handler.handle(logging.makeLogRecord({"msg": f"line {number}", "levelname": "INFO"}))
    handler.close()
    files = rotated_files(tmp_path / "a.jsonl")
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) <= 3000
    assert json.loads(files[-1].read_text().splitlines()[-1])["message"] == "line 99"


def test_a_disk_that_refuses_does_not_stop_what_is_logged(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    log = RunLog(tmp_path)
    log.start()
    logger.warning("goes nowhere")
    log.write({"message": "neither does this"})
    log.stop()
    assert (tmp_path / "logs").read_text() == "a file in the way"
