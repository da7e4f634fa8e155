"""The logs of a run as JSON lines, by category, each file bounded.

| file in the run directory | holds |
| --- | --- |
| logs/training/training.jsonl | what happened, and what Temper logged besides |
| logs/performance/performance.jsonl | speed and cost of steps, at each sample of the monitor |
| logs/performance/summary.json | what all samples came to |
| logs/errors/errors.jsonl | what went wrong and what was done |
| logs/errors/traceback.txt | of the error that ended it, where nobody foresaw that |
| logs/errors/copier.txt | the same of the process that copies backups |
| logs/system/system.jsonl | the machine, at each sample |
| logs/system/alerts.jsonl | when an alert began and ended |
| logs/output.txt | what a detached training said, and what a closed terminal was not told |

This module writes the first; a line has time (seconds since 1970), level, logger and message;
what happened has its numbers, an exception its traceback. `training.1.jsonl` is the file before,
and so on.
"""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from infrastructure.core.line_file import RotatingLineFile
from infrastructure.core.redact import redact
from infrastructure.monitoring.drawing.metrics_file import encode_record, plain_record

OUTPUT_FILE = Path("logs") / "output.txt"
TRAINING_FILE = Path("logs") / "training" / "training.jsonl"
PACKAGE = "infrastructure"  # the logger above all of ours


class JsonLinesHandler(logging.Handler):
    """Writes each record as a JSON line, without secrets; a disk that refuses ends it quietly,
    because a log must not stop what it tells of."""

    def __init__(self, file: RotatingLineFile) -> None:
        super().__init__()
        self.file = file
        self.is_off = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_off:
            return
        try:
            self.file.append(encode_record(as_json(record)))
        except OSError:
            self.is_off = True  # another line about it would come here again

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
        super().close()


def as_json(record: logging.LogRecord) -> dict[str, object]:
    """What a line holds. A log call's `extra={"numbers": {…}}` becomes keys of the line."""
    line = {
        "time": record.created,
        "level": record.levelname,
        "logger": record.name,
        "message": redact(record.getMessage()),
        **plain_record(getattr(record, "numbers", {})),
    }
    if record.exc_info:
        line["traceback"] = redact(logging.Formatter().formatException(record.exc_info))
    return line


class RunLog:
    """Keeps in a run directory what Temper logs, from `start` to `stop`, and what happens."""

    def __init__(self, run_directory: Path) -> None:
        self._handler = JsonLinesHandler(RotatingLineFile(run_directory / TRAINING_FILE))

    def start(self) -> None:
        """Write what is logged from now on."""
        logging.getLogger(PACKAGE).addHandler(self._handler)

    def stop(self) -> None:
        """Write no more."""
        logging.getLogger(PACKAGE).removeHandler(self._handler)
        self._handler.close()

    def write(self, happened: Mapping[str, object]) -> None:
        """A line for something that happened: its `message`, and what else is known of it. It goes
        to the file only: the console tells it in its own way."""
        record = logging.makeLogRecord(
            {
                "name": f"{PACKAGE}.run",
                "levelno": logging.INFO,
                "levelname": "INFO",
                "msg": str(happened["message"]),
                "numbers": {k: v for k, v in happened.items() if k != "message"},
            }
        )
        self._handler.handle(record)
