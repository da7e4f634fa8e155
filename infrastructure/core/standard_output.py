"""Standard output and error that may go away: a closed terminal or pipe, a full disk.

What cannot be written is dropped, and whoever prints goes on; a disk with space again takes what
comes then. Nothing else of a stream is changed.
"""

import logging
import sys
from typing import Any, TextIO

log = logging.getLogger(__name__)


class LossyStream:
    """A text stream whose `write` and `flush` do not fail."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name = stream, name
        self.is_lost = False

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._lose(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _lose(self, error: Exception) -> None:
        if not self.is_lost:
            self.is_lost = True  # before the next line, which may come here again
            log.warning("%s takes nothing any more, the work goes on: %s", self.name, error)


def survive_lost_output(*names: str) -> None:
    """Let `stdout` and `stderr` of `sys`, or those of them that are named, be lossy ones."""
    for name in names or ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, LossyStream):
            setattr(sys, name, LossyStream(stream, name))
