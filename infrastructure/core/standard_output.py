"""Standard output and error that never fail, even if the terminal or pipe is closed or a disk is
full.

Text that cannot be written is appended to a file, if one is set. If a stream works again, for
example because the disk has space again, later text goes to the stream.
"""

import logging
import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel

STREAMS = ("stdout", "stderr")

log = logging.getLogger(__name__)


class LossyStream:
    """A text stream whose methods `write` and `flush` never raise an error.

    Attributes:
        kept_in: the file for text that cannot be written to `stream`.
        is_lost: whether any text could not be written to `stream`.
    """

    kept_in: Path | None = None  # shared by all streams of this process

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_lost = False
        self._fails = False  # whether the last write or flush failed
        self._line = ""  # the text that `stream` may not have flushed yet

    def write(self, text: str) -> int:
        if not text.startswith("\r"):  # a progress bar being redrawn
            self._line += text
        try:
            self.stream.write(text)
            if "\n" in text:
                self.stream.flush()
                self._line, self._fails = text.rpartition("\n")[2], False
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._lose(error)
            self._keep()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def release_traceback(self) -> None:
        """Discard pending text that cannot be written.

        Otherwise Python's flush at exit would fail, and Python would change the exit code.
        """
        self.flush()
        if self._fails:
            with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())

    def _lose(self, error: Exception) -> None:
        self._fails = True
        if not self.is_lost:
            self.is_lost = True  # before the warning, which may get here again
            if isinstance(error, OSError):  # otherwise it was closed on purpose
                name = getattr(self.stream, "name", "output")
                log.warning(phrase("core.output_lost", stream=name, error=error))

    def _keep(self) -> None:
        text, self._line = self._line, ""
        if LossyStream.kept_in is not None and text:
            with suppress(OSError):
                LossyStream.kept_in.parent.mkdir(parents=True, exist_ok=True)
                with LossyStream.kept_in.open("a", encoding="utf-8") as file:
                    file.write(text)


def is_reader_gone(stream: TextIO) -> bool:
    """Return whether `stream` is a pipe whose reader is gone."""
    try:
        watched = select.poll()
        watched.register(stream.fileno(), 0)
        return any(events & select.POLLERR for _, events in watched.poll(0))
    except (OSError, ValueError):  # a stream without a file
        return False


@contextmanager
def lossy_output(*names: str) -> Iterator[None]:
    """Make writing to standard output and error (or the named streams) never fail inside the block.

    This does nothing in a notebook.
    """
    own: dict[str, LossyStream] = {}
    if not in_notebook_kernel():
        for name in names or STREAMS:
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, LossyStream):
                own[name] = LossyStream(stream)
                setattr(sys, name, own[name])
    try:
        yield
    finally:
        for name, stream in own.items():
            stream.release_traceback()
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)


@contextmanager
def lost_output_kept_in(path: Path) -> Iterator[None]:
    """Append text that cannot be written to standard output inside the block to the file `path`."""
    before = LossyStream.kept_in
    LossyStream.kept_in = path
    try:
        yield
    finally:
        LossyStream.kept_in = before
