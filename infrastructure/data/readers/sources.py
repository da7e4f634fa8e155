"""Discovery of the data files that a configured path refers to, with their formats and hashes.

A path is a file, a folder (read in the order of the names inside), a folder written by
`datasets.save_to_disk`, or the name of a dataset on the Hugging Face Hub.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from infrastructure.config import registries
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.errors import InputError
from infrastructure.core.files import file_sha256, readable_path, require_listable
from infrastructure.core.hub import data_sets_folder, hub_is_reachable
from infrastructure.core.lookup import meant_hint, nearest, unknown_name
from infrastructure.core.messages import phrase
from infrastructure.core.named_object import is_address
from infrastructure.core.redact import public_address
from infrastructure.core.registry import Registry
from infrastructure.data.readers.compressed import (
    COMPRESSED,
    ZIP,
    data_name,
    is_damaged,
    num_other_members,
)
from infrastructure.data.readers.file_type import (
    EXCEL,
    HDF5,
    NOT_WHAT_WAS_MEANT,
    PARQUET,
    BinaryFormat,
    check_text,
    json_kind,
    kind_of_file,
    read_head,
)
from infrastructure.data.readers.json_format import Lists, lists_of, read_json
from infrastructure.data.readers.line_reader import BEGIN, Start
from infrastructure.data.readers.pictures import ENDINGS as PICTURE_ENDINGS
from infrastructure.data.readers.rows import (
    INVALID_UTF8,
    OTHER_ENCODING,
    WRONG_TYPE,
    BadRow,
    Row,
    excerpt,
    kind_of,
)
from infrastructure.data.readers.splits import (
    HELD_OUT,
    SETTINGS,
    SPLITS,
    TEST,
    is_no_data,
    named,
    parts_of,
    saved_splits,
)
from infrastructure.data.readers.table_formats import (
    Parquet,
    is_saved_dataset,
    load_huggingface,
    read_huggingface,
    split_place,
)
from infrastructure.data.readers.text_encoding import AUTO, UTF8
from infrastructure.data.readers.text_formats import (
    read_csv,
    read_jsonl,
    read_text,
    read_tsv,
)

Reader = Callable[[Path, str, Start], Iterator[Row | BadRow]]
PluginReader = Callable[[Path], Iterable[dict[str, object]]]

HUGGINGFACE = "huggingface"
TEXT_READERS: dict[str, Callable[..., Iterator[Row | BadRow]]] = {
    "json": read_json,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "tsv": read_tsv,
    "text": read_text,
}
READERS: dict[str, Reader] = {
    **TEXT_READERS,
    "parquet": Parquet(),
    HUGGINGFACE: read_huggingface,
}
EXTENSIONS = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".markdown": "text",
}
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?(@[\w.\[\]:%+-]+)?")

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://|https?:/", re.IGNORECASE)

FORMATS: Registry[PluginReader | BinaryFormat] = registries.FORMATS


def register_format(name: str, reader: PluginReader | BinaryFormat) -> None:
    """Register a file format, for files that end in `.name` and for the setting `format=name`.

    A reader in a module needs no registration: `format=module:function`. An installed package can
    register one with an entry point in the group "temper.formats".

    Args:
        reader: yields the rows of a file as dictionaries, in a fixed order; or a `BinaryFormat`.

    Raises:
        ValueError: the name is taken.
    """
    if name in READERS:
        raise InputError("data.format_name_taken", name=name)
    FORMATS.register(name, reader)


@dataclass(frozen=True)
class DataFile:
    """One file to read, or one dataset of the `datasets` library.

    Attributes:
        name: short name for messages and for file:line.
        note: a note for the user if the file is read in an unusual way, or "".
        encoding: the encoding of a text file, by Python's name; "" is UTF-8.
        split: the key of the list to read in a JSON document that holds several; "" is the one
            with training rows.
        held_out, test: the folder's files for these splits (see `splits`), set only on the folder's
            first training file. The test files are not inspected.
    """

    path: Path
    name: str
    format: str
    note: str = ""
    encoding: str = UTF8
    split: str = ""
    held_out: tuple["DataFile", ...] = ()
    test: tuple["DataFile", ...] = ()

    def rows(self, start: Start = BEGIN) -> Iterator[Row | BadRow]:
        """Yield the rows of the file from `start` on.

        Raises:
            ValueError: the file cannot be read at all.
        """
        try:
            yield from self._rows(start)
        except Exception as error:
            if is_damaged(error):
                raise InputError("data.compressed_data_truncated", file=self.name) from error
            raise

    def _rows(self, start: Start) -> Iterator[Row | BadRow]:
        if self.split:
            read: Reader = partial(read_json, encoding=self.encoding, split=self.split)
        elif self.encoding:
            read = partial(TEXT_READERS[self.format], encoding=self.encoding)
        else:
            read = _reader(self.format)
        for row in read(self.path, self.name, start):
            if self.encoding and isinstance(row, BadRow) and row.reason == INVALID_UTF8:
                yield replace(row, reason=OTHER_ENCODING, detail=self.encoding, encoding="")
            else:
                yield row

    @property
    def has_header(self) -> bool:
        """Whether the first line of the file names the columns."""
        if self.format in TEXT_READERS:
            return self.format in ("csv", "tsv")
        return bool(getattr(_reader(self.format), "has_header", False))

    def sha256(self) -> str:
        """Return the hash of the content, which does not depend on the file's path."""
        if self.format != HUGGINGFACE:
            return file_sha256(self.path)
        place, split = split_place(str(self.path))
        folder = Path(place)
        if folder.is_dir():
            parts = sorted(p for p in folder.rglob("*") if p.suffix in (".arrow", ".json"))
        else:
            cached = load_huggingface(str(self.path)).cache_files
            parts = [Path(part["filename"]) for part in cached]
        hashes = [split, *(file_sha256(part) for part in parts)]
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    def stamp(self) -> tuple[int, int]:
        """Return (size, modification time), which cheaply show whether the file has changed."""
        if not self.path.is_file():
            return (0, 0)
        status = self.path.stat()
        return (status.st_size, status.st_mtime_ns)


def _reader(name: str) -> Reader:
    return READERS.get(name) or _reader_of_plugin(FORMATS.get(name))


@cache
def _by_extension() -> dict[str, str]:
    """Return extension → format, for the built-in formats and those of features."""
    binary = {name: _reader(name) for name in FORMATS.built_in if name not in TEXT_READERS}
    known = {e: name for name, read in binary.items() for e in getattr(read, "extensions", ())}
    return EXTENSIONS | known


def _reader_of_plugin(read: PluginReader | BinaryFormat) -> Reader:
    if isinstance(read, BinaryFormat):
        return read

    def rows(path: Path, name: str, start: Start) -> Iterator[Row | BadRow]:
        records = itertools.islice(enumerate(read(path)), start.offset, None)
        for index, values in records:
            if isinstance(values, dict):
                yield Row(values, name, index + 1, index)
            else:
                detail = phrase("data.format_returned_no_row", kind=kind_of(values))
                yield BadRow(name, index + 1, WRONG_TYPE, detail, excerpt(values), index)

    return rows


def discover(
    place: str,
    data_format: str = "auto",
    what: str = "training data",
    *,
    encoding: str = AUTO,
) -> list[DataFile]:
    """Return the files at `place`, each with its format, which is checked against the content.

    Args:
        what: what the files are, for error messages.
        encoding: the encoding of text files without a byte order mark.

    Raises:
        ValueError: there is nothing readable; the message says what was found and what to do.
    """
    _check_format(data_format)
    if ADDRESS.match(place):
        raise InputError("data.url_instead_of_file", what=what, url=public_address(place))
    try:
        return _files_at(place, data_format, what, encoding)
    except PermissionError as error:
        raise InputError(
            "data.no_read_permission", what=what, file=error.filename, reason=error.strerror
        ) from error


def _files_at(place: str, data_format: str, what: str, encoding: str) -> list[DataFile]:
    path = Path(place)
    where, _ = split_place(place)
    if is_saved_dataset(Path(where)):
        return [_data_set(path, readable_path(path.name), saved_splits(Path(where)))]
    if path.is_dir():
        return _folder_files(path, data_format, what, encoding)
    _check_link(path, what)
    if path.exists():
        return [_data_file(path, readable_path(path.name), data_format, encoding)]
    if data_format == HUGGINGFACE or may_be_on_the_hub(place):
        return [_data_set(path, place, load_huggingface(place).info.splits or ())]
    raise InputError(_not_found(path, what))


def refuse_missing_data(place: str) -> None:
    """Raise ValueError if `place` is neither an existing path nor a Hub dataset's name."""
    if not Path(split_place(place)[0]).exists() and not may_be_on_the_hub(place):
        discover(place)


def refuse_unreachable(place: str) -> None:
    """Raise ValueError if a Hub dataset is neither cached nor available from the Hub.

    Only names are checked: a dataset counts as cached if the cache contains any dataset of its
    owner.
    """
    owner = place.partition("/")[0]
    if not any(data_sets_folder().glob(f"{owner}___*")) and not hub_is_reachable():
        raise InputError("data.hub_unreachable", name=place)


def files_of(config: DataConfig) -> tuple[list[DataFile], list[DataFile]]:
    """Return the training files and the held-out files; the latter as configured or found next to
    the former.

    Raises:
        ValueError: the files do not exist.
    """
    train = discover(str(config.path), config.format, encoding=config.encoding)
    if config.eval_path is None:
        return train, held_out_beside(train) if config.validation_split else []

    def held_out_at(place: str) -> list[DataFile]:
        return discover(place, config.format, "held-out data", encoding=config.encoding)

    given = held_out_at(config.eval_path)
    tests = [one for file in given for test in file.test for one in held_out_at(str(test.path))]
    return train, held_out_beside(given) or tests or given


def held_out_beside(files: list[DataFile]) -> list[DataFile]:
    """Return the held-out data that comes with the training files.

    The held-out data is in other files of the same folder, or in other lists of the same JSON
    documents.
    """
    splits = [(file, _lists(file).held_out) for file in files]
    inside = [
        replace(file, split=split, note="", held_out=(), test=()) for file, split in splits if split
    ]
    return [*(one for file in files for one in file.held_out), *inside]


def _lists(file: DataFile) -> Lists:
    return lists_of(file.path, file.encoding) if file.format == "json" else Lists()


def about_splits(train: list[DataFile], held_out: list[DataFile]) -> list[str]:
    """Return notes on files and rows next to the training data that are not trained on."""
    beside = held_out_beside(train)
    files = [file.name for file in beside if not file.split]
    measured = {(file.path.resolve(), file.split) for file in held_out}
    is_used = any((file.path.resolve(), file.split) in measured for file in beside)
    notes = [
        phrase("data.split_of_file_held_out", file=file.name, split=file.split)
        if is_used
        else phrase("data.split_of_file_unused", file=file.name, split=file.split)
        for file in beside
        if file.split
    ]
    notes += [
        phrase(
            "data.rows_of_other_lists_unread",
            file=file.name,
            lists=", ".join(f"`{key}`" for key in unread),
        )
        for file in train
        if (unread := _lists(file).unread)
    ]
    if files:
        what = (
            phrase("data.file_held_out_by_name")
            if is_used
            else phrase("data.file_neither_trained_nor_held_out")
        )
        notes.insert(0, phrase("data.files_as", files_are=named(files), role=what))
    tests = [one for file in train for one in file.test]
    if left := [one.name for one in tests if (one.path.resolve(), "") not in measured]:
        notes.append(phrase("data.test_files_unused", files_are=named(left)))
    return notes


def data_files_hash(data: DataConfig) -> str | None:
    """Return one hash of all configured data files; None if they are not on this machine."""
    digest = hashlib.sha256()
    for place in (data.path, data.eval_path):
        if place is None or not Path(place).exists():
            continue
        files = discover(place, data.format, encoding=data.encoding)
        for file in [*files, *(one for first in files for one in first.held_out)]:
            digest.update(f"{file.name} {file.sha256()}\n".encode())
    return digest.hexdigest() if data.path is not None and Path(data.path).exists() else None


def refuse_no_data(path: Path, advice: str) -> None:
    """Reject a file that is clearly not data, whatever its name: an archive, a document, an image.

    Text is accepted, and so is any file whose extension belongs to a plug-in format.

    Args:
        advice: the remedy to suggest if the user probably meant another file.

    Raises:
        ValueError: no reader can read it; the text says what it is, and what to do.
    """
    if _is_plugin(path.suffix.lower().removeprefix(".")):
        return
    what = kind_of_file(path, read_head(path)[0])
    if what is None or what[0] in (PARQUET, HDF5, EXCEL):
        return
    kind, remedy = what
    remedy = advice if kind in NOT_WHAT_WAS_MEANT else remedy
    raise InputError("data.path_is_not_data", path=path.name, kind=phrase(kind), remedy=remedy)


def _is_plugin(name: str) -> bool:
    return name not in READERS and FORMATS.is_here(name)


def _check_format(data_format: str) -> None:
    if is_address(data_format):
        FORMATS.get(data_format)
    elif data_format != "auto" and not FORMATS.is_here(data_format):
        known = ["auto", *FORMATS.names()]
        raise InputError(
            "data.unknown_format", reason=unknown_name("data format", data_format, known)
        )


def may_be_on_the_hub(place: str) -> bool:
    """Return whether `place` looks like the name of a Hub dataset and not like a local path."""
    owner = Path(place.partition("/")[0])
    return (
        HUB_NAME.fullmatch(place) is not None
        and not owner.exists()
        and _format_by_name(Path(place)) is None
    )


def _check_link(path: Path, what: str) -> None:
    if path.is_symlink() and not path.exists():
        raise InputError("data.broken_link", what=what, path=path, target=path.readlink())


def _not_found(path: Path, what: str) -> str:
    folder = path.parent
    near = nearest(path.name, [p.name for p in folder.iterdir()]) if folder.is_dir() else None
    hint = meant_hint(str(folder / near) if near else None)
    hint = hint or phrase("data.give_file_folder_or_dataset")
    return phrase("data.path_not_found", what=what, path=str(path), hint=hint)


def _folder_files(folder: Path, data_format: str, what: str, encoding: str) -> list[DataFile]:
    """Return the data files in a folder and its subfolders; text files only if there are no
    others.
    """
    inside = [p for p in folder.rglob("*") if not _is_hidden(p, folder)]
    for directory in (folder, *filter(Path.is_dir, inside)):
        require_listable(directory)  # otherwise it would be skipped silently
    everything = sorted(p for p in inside if p.is_file() or (p.is_symlink() and not p.exists()))
    if data_format == "auto":
        known = [p for p in everything if _format_by_name(p)]
        known = [p for p in known if not is_no_data(p, known)] or known
        tables = [p for p in known if _format_by_name(p) != "text"]
        chosen = tables or known
    else:
        known = [p for p in everything if _format_by_name(p) == data_format]
        chosen = known or everything
        chosen = [p for p in chosen if not is_no_data(p, chosen)] or chosen
    if not chosen:
        names = ", ".join(p.name for p in everything[:5]) or "nothing"
        raise InputError(
            "data.folder_without_data_files",
            folder=str(folder),
            names=names,
            extensions=", ".join(_by_extension()),
        )
    for path in chosen:
        _check_link(path, what)
    parts = parts_of(folder, chosen, lambda path: data_name(path).stem)

    def shown(path: Path) -> str:
        return readable_path(path.relative_to(folder).as_posix())

    train, held_out = (
        [_data_file(p, shown(p), data_format, encoding) for p in paths]
        for paths in (parts.train, parts.held_out)
    )
    used = {*chosen}
    others = [p for p in everything if p not in used and not _is_known(p, everything)]
    skipped = named([shown(p) for p in others]) if others else ""
    left_out = phrase("data.files_skipped", files_are=skipped) if skipped else ""
    note = "; ".join(filter(None, [train[0].note, *parts.notes, left_out]))
    test = tuple(DataFile(p, shown(p), data_format) for p in parts.test)
    train[0] = replace(train[0], note=note, held_out=tuple(held_out), test=test)
    return train


def _is_known(path: Path, everything: list[Path]) -> bool:
    """Return whether a file is clearly not data: a dataset card, an index, or an image of a row."""
    if path.name.lower().endswith(PICTURE_ENDINGS):
        return True
    return path.name.lower() not in SETTINGS and is_no_data(path, everything)


def _data_set(path: Path, name: str, splits: Iterable[str]) -> DataFile:
    """Return the training split of a dataset of the `datasets` library, and its other splits.

    Args:
        splits: the splits of the dataset, used if `path` names none.
    """
    where, split = split_place(str(path))
    roles = {one: SPLITS.get(one.lower(), "") for one in splits if not split}
    held_out, test = (
        tuple(
            DataFile(Path(f"{where}@{one}"), f"{name}@{one}", HUGGINGFACE)
            for one in roles
            if roles[one] == role
        )
        for role in (HELD_OUT, TEST)
    )
    rest = [f"{name}@{one}" for one, role in roles.items() if not role]
    note = phrase("data.files_skipped", files_are=named(rest)) if rest else ""
    return DataFile(path, name, HUGGINGFACE, note, held_out=held_out, test=test)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def _format_by_name(path: Path) -> str | None:
    extension = data_name(path).suffix.lower()
    plugin = extension.removeprefix(".")
    return _by_extension().get(extension) or (plugin if _is_plugin(plugin) else None)


def _data_file(path: Path, name: str, data_format: str, encoding: str) -> DataFile:
    if not path.is_file():
        raise InputError("data.not_a_regular_file", path=str(path))
    chosen = data_format if data_format != "auto" else _format_by_name(path)
    if chosen is None:
        refuse_no_data(path, phrase("data.give_intended_file"))
        raise InputError(
            "data.unknown_file_extension", path=path, formats=", ".join(FORMATS.names())
        )
    is_text = chosen in TEXT_READERS
    head, detected = read_head(path, encoding if is_text else AUTO)
    if is_text:
        check_text(path, head)
    else:
        if isinstance(reader := _reader(chosen), BinaryFormat):
            reader.check(path, head)
        if path.suffix.lower() in COMPRESSED:
            raise InputError("data.compressed_binary_file", path=path, format=chosen)
    if chosen not in ("json", "jsonl"):
        about = _about(path, name, chosen)
        if not is_text and encoding != AUTO:
            others = phrase("data.encoding_of_binary_file", file=name, format=chosen)
            about = "; ".join(filter(None, [about, others]))
        return DataFile(path, name, chosen, about, detected if is_text else UTF8)
    kind = json_kind(head, chosen)
    return DataFile(path, name, kind, _about(path, name, kind), detected)


def _about(path: Path, name: str, data_format: str) -> str:
    """Return a note on the parts of a file that are not read; "" if there are none."""
    if path.suffix.lower() == ZIP and (others := num_other_members(path)):
        return phrase(
            "data.archive_member_read",
            archive=name,
            member=data_name(path),
            others=phrase("data.other_files_skipped", count=others),
        )
    reader = None if data_format in TEXT_READERS else _reader(data_format)
    return reader.unread(path, name) if isinstance(reader, BinaryFormat) else ""
