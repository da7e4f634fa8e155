"""The folder of the runs. Loads no torch."""

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
    """Raises:
    ValueError: its path is no text, which not all that writes there can do with.
    """
    if not is_utf8(output_dir.absolute()):
        raise InputError("run.output_dir_not_utf8", path=readable_path(output_dir.absolute()))


@contextmanager
def no_empty_folder_left(output_dir: Path) -> Iterator[None]:
    """Inside, `output_dir` may be made; where nothing came to lie in it, it is gone afterwards."""
    parents = [output_dir, *output_dir.parents]
    made = [folder for folder in parents if not os.path.lexists(folder)]
    try:
        yield
    finally:
        with suppress(OSError):  # something lies in it
            for folder in made:
                folder.rmdir()


def writable(output_dir: Path) -> Path:
    """`output_dir`, made if it is not there.

    Raises:
        ValueError: it cannot be written to, or not by all that writes there.
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
