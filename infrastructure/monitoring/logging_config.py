"""The logs of a run as JSON lines, by category, each file bounded.

| file in the run directory | holds |
| --- | --- |
| logs/training/training.jsonl | what Temper logs, from the level of `log_level` on |
| logs/performance/performance.jsonl | speed and cost of steps, at each sample of the monitor |
| logs/errors/errors.jsonl | what went wrong and what was done |
| logs/system/system.jsonl | the machine, at each sample |
| logs/system/alerts.jsonl | when an alert began and ended |

This module writes the first; a line has time (seconds since 1970), level, logger, message and, for
an exception, its traceback. `training.1.jsonl` is the file before, and so on.
"""

import logging
from pathlib import Path

from infrastructure.core.line_file import RotatingLineFile
from infrastructure.core.redact import redact
from infrastructure.monitoring.metrics_file import encode_record

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
            self.file.append(encode_record(as_json(record, self.formatter)))
        except OSError:
            self.is_off = True  # another line about it would come here again

    def close(self) -> None:
        self.file.close()
        super().close()


def as_json(record: logging.LogRecord, formatter: logging.Formatter | None) -> dict[str, object]:
    """What a line holds."""
    line: dict[str, object] = {
        "time": record.created,
        "level": record.levelname,
        "logger": record.name,
        "message": redact(record.getMessage()),
    }
    if record.exc_info:
        writer = formatter or logging.Formatter()
        line["traceback"] = redact(writer.formatException(record.exc_info))
    return line


class RunLog:
    """Keeps in a run directory what Temper logs, from `start` to `stop`."""

    def __init__(self, run_directory: Path) -> None:
        self._file = RotatingLineFile(run_directory / TRAINING_FILE)
        self._handler: JsonLinesHandler | None = None

    def start(self) -> None:
        """Write what is logged from now on; again where it does so already: nothing."""
        if self._handler is None:
            self._handler = JsonLinesHandler(self._file)
            logging.getLogger(PACKAGE).addHandler(self._handler)

    def stop(self) -> None:
        """Write no more."""
        handler, self._handler = self._handler, None
        if handler is not None:
            logging.getLogger(PACKAGE).removeHandler(handler)
            handler.close()
