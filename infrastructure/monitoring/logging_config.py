"""The logs of a run as JSON lines, by category, with bounded file sizes.

| file in the run directory | contents |
| --- | --- |
| logs/training/training.jsonl | events of the run, and everything that Temper logs |
| logs/performance/performance.jsonl | speed and cost of steps, at each sample of the monitor |
| logs/performance/summary.json | statistics over all samples |
| logs/errors/errors.jsonl | errors and the response to them |
| logs/errors/traceback.txt | traceback of the error that ended the run, if it was unexpected |
| logs/errors/copier.txt | the same for the process that copies backups |
| logs/system/system.jsonl | the machine, at each sample |
| logs/system/alerts.jsonl | begin and end of alerts |
| logs/output.txt | output of a detached run, or after the terminal was closed |

This module writes the first of these files. Each line has the time (seconds since 1970), level,
logger and message. Events also have numbers, and exceptions a traceback. When the file becomes too
large, it is renamed to `training.1.jsonl`, and a new one begins.
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
PACKAGE = "infrastructure"  # the parent of all of Temper's loggers


class JsonLinesHandler(logging.Handler):
    """A handler that writes each record as a JSON line, with secrets masked.

    If the disk fails, the handler silently stops writing, because a log must not stop the run.
    """

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
            self.is_off = True  # a warning about it would end up here again

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
        super().close()


def as_json(record: logging.LogRecord) -> dict[str, object]:
    """Return the JSON object that is written for a log record.

    Numbers that a log call passes as `extra={"numbers": {…}}` become keys of the object.
    """
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
    """The log file in a run directory.

    Between `start` and `stop`, it gets everything that Temper logs.
    """

    def __init__(self, run_directory: Path) -> None:
        self._handler = JsonLinesHandler(RotatingLineFile(run_directory / TRAINING_FILE))

    def start(self) -> None:
        """Begin to write log records."""
        logging.getLogger(PACKAGE).addHandler(self._handler)

    def stop(self) -> None:
        """Stop writing and close the file."""
        logging.getLogger(PACKAGE).removeHandler(self._handler)
        self._handler.close()

    def write(self, happened: Mapping[str, object]) -> None:
        """Write a line for an event: its `message` and its other values.

        The event is not shown on the console, which shows events in its own way.
        """
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
