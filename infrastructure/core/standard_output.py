"""Standard output and error that may go away: a closed terminal or pipe, a full disk.

Whoever prints goes on. What cannot be written is added to a file, once there is one; a disk that
has space again takes what comes then.
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
    """A text stream whose `write` and `flush` do not fail.

    Attributes:
        kept_in: the file that gets what `stream` does not take.
        is_lost: whether there was something that it did not take.
    """

    kept_in: Path | None = None  # of all streams of this process

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_lost = False
        self._fails = False  # the last time that something was to leave it
        self._line = ""  # what `stream` may hold still

    def write(self, text: str) -> int:
        if not text.startswith("\r"):  # a bar that is drawn again
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
        """Have what it still holds dropped where it cannot be written: a Python whose last flush
        fails ends with an exit code of its own."""
        self.flush()
        if self._fails:
            with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())

    def _lose(self, error: Exception) -> None:
        self._fails = True
        if not self.is_lost:
            self.is_lost = True  # before the next line, which may come here again
            if isinstance(error, OSError):  # else it was closed on purpose
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
    """Whether `stream` is a pipe that nobody reads any more."""
    try:
        watched = select.poll()
        watched.register(stream.fileno(), 0)
        return any(events & select.POLLERR for _, events in watched.poll(0))
    except (OSError, ValueError):  # a stream without a file
        return False


@contextmanager
def lossy_output(*names: str) -> Iterator[None]:
    """Inside, standard output and error (or those that are named) may be lost. A notebook's are
    never."""
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
    """Inside, what cannot be written is added to the file `path`; its folder is made then."""
    before = LossyStream.kept_in
    LossyStream.kept_in = path
    try:
        yield
    finally:
        LossyStream.kept_in = before
