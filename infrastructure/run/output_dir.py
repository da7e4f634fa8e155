"""The folder that contains the runs. Loads no torch."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.files import is_utf8, make_directory, readable_path
from infrastructure.core.messages import phrase


def check_spelling(output_dir: Path) -> None:
    """Raise an error if a path is not valid UTF-8, because some libraries cannot write to it.

    Raises:
        ValueError: if the path is not valid UTF-8.
    """
    if not is_utf8(output_dir.absolute()):
        raise InputError("run.output_dir_not_utf8", path=readable_path(output_dir.absolute()))


@contextmanager
def no_empty_folder_left(output_dir: Path) -> Iterator[None]:
    """Remove `output_dir` on exit if it was created inside the block and is still empty."""
    parents = [output_dir, *output_dir.parents]
    made = [folder for folder in parents if not os.path.lexists(folder)]
    try:
        yield
    finally:
        with suppress(OSError):  # not empty
            for folder in made:
                folder.rmdir()


def writable(output_dir: Path) -> Path:
    """Create `output_dir` if necessary, check that it is writable, and return it.

    Raises:
        ValueError: if it is not writable, or its path is not valid UTF-8.
    """
    check_spelling(output_dir)
    try:
        make_directory(output_dir)
        with tempfile.TemporaryFile(dir=output_dir):
            return output_dir
    except OSError as error:
        is_file = error.errno in (errno.EEXIST, errno.ENOTDIR)
        why = phrase("run.output_dir_is_a_file") if is_file else error.strerror
        raise InputError(
            "run.output_dir_not_writable", output_dir=output_dir, reason=why
        ) from error
