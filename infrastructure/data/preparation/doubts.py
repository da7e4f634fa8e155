"""Checks for data that the user probably did not mean to train on, before anything is loaded."""

from itertools import islice
from pathlib import Path, PurePosixPath

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.data.readers.rows import Row
from infrastructure.data.readers.sources import HUGGINGFACE, DataFile, discover
from infrastructure.data.readers.splits import DOCUMENTS


class UnconfirmedDataError(InputError):
    """An error for unusual data, which is trained on only after the user confirms it.

    Attributes:
        doubt: what is unusual about the data, as a sentence without a full stop.
    """

    def __init__(self, doubt: str) -> None:
        super().__init__(f"{doubt}: {phrase('data.confirm_small_data')}")
        self.doubt = doubt


def check_meant(config: DataConfig) -> None:
    """Reject, unless confirmed, a folder that contains only a readme, and a file with a single row.

    Raises:
        UnconfirmedDataError: the data is such a folder or file, and `accept_small_data` is off.
    """
    if config.path is None or config.accept_small_data or not Path(config.path).exists():
        return
    try:
        files = discover(config.path, config.format, encoding=config.encoding)
        doubt = _doubt(config.path, files)
    except ValueError:
        return  # reported when the data is read
    if doubt:
        raise UnconfirmedDataError(doubt)


def _doubt(place: str, files: list[DataFile]) -> str:
    first = files[0]
    if first.format == HUGGINGFACE:
        return ""
    stem = PurePosixPath(first.name).stem.lower()
    if len(files) == 1 and first.format == "text" and Path(place).is_dir() and stem in DOCUMENTS:
        return phrase("data.folder_only_has_document", folder=place, file=first.name)
    rows = (row for file in files for row in file.rows() if isinstance(row, Row))
    if len(list(islice(rows, 2))) == 1:
        return phrase("data.file_has_one_row", file=first.name)
    return ""
