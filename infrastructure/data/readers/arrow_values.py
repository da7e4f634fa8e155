"""Conversion of Arrow columns to plain Python values: a label becomes its name, a date its ISO
text.

Values without a text form (bytes, durations) stay as they are. A row in which such a value is
needed as text is skipped, and the reason names the type. A column that cannot be read at all
affects only the rows that use it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infrastructure.core.json_text import parse_json
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.readers.rows import Label, Unreadable

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

Converter = Callable[[Any], object]

HUGGINGFACE_KEY = b"huggingface"  # metadata key under which `datasets` describes the columns
INDEX_COLUMN = re.compile(r"__index_level_\d+__")  # row numbers that pandas writes
NO_VALUES = (ValueError, OverflowError, TypeError, NotImplementedError)


class PlainRows:
    """A converter from record batches with a given schema to rows of plain Python values."""

    def __init__(self, schema: "Schema", described: Mapping[bytes, bytes] | None = None) -> None:
        """Choose a conversion for each column.

        Args:
            described: metadata in which `datasets` describes the columns; None: the metadata of
                `schema`.
        """
        features = _features(described or schema.metadata or {})
        self.columns = [name for name in schema.names if not INDEX_COLUMN.fullmatch(name)]
        self.columns = self.columns or schema.names
        converters = {
            name: _converter(schema.field(name).type, features.get(name))
            for name in self.columns
            if schema.names.count(name) == 1
        }
        self.converters = {name: convert for name, convert in converters.items() if convert}

    def of(self, batch: "RecordBatch") -> list[dict[str, object]]:
        """Return the rows of a record batch; raises UnicodeDecodeError if a text is not UTF-8."""
        arrow = require("pyarrow", "data.read_tables")
        names = [name for name in batch.schema.names if name in self.columns]
        columns = [_written_out(batch.column(batch.schema.names.index(name))) for name in names]
        try:
            rows = arrow.RecordBatch.from_arrays(columns, names=names).to_pylist()
        except UnicodeDecodeError:
            raise
        except NO_VALUES:
            values = [_values(column) for column in columns]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        if self.converters:
            for row in rows:
                for name, convert in self.converters.items():
                    value = row[name]
                    if value is not None and not isinstance(value, Unreadable):
                        row[name] = convert(value)
        return rows


def _written_out(column: "Array") -> "Array":
    """Decode a dictionary-encoded column, which makes reading faster. Return other columns
    unchanged.
    """
    kinds = require("pyarrow.types", "data.read_tables")
    return column.dictionary_decode() if kinds.is_dictionary(column.type) else column


def _values(column: "Array") -> list[object]:
    """Return the values of a column, with placeholders for values that Python cannot represent."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raise
    except NO_VALUES:
        return [Unreadable(phrase("data.unsupported_arrow_type", type=column.type))] * len(column)


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, object]:
    """Return the description of the columns by `datasets`; {} if it is missing or unreadable."""
    try:
        described: Any = parse_json(metadata.get(HUGGINGFACE_KEY, b"{}"))
        features = described["info"]["features"]
    except (ValueError, LookupError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _converter(kind: "DataType", feature: object, is_in_list: bool = False) -> Converter | None:
    """Return a function that converts values of an Arrow type to plain values; None if they are
    plain.

    Args:
        feature: the description of the values by `datasets`.
        is_in_list: the values are inside a list or map. Arrow gives all objects there the same
            keys, so keys without a value are dropped, because they were not in the original data.
    """
    arrow = require("pyarrow", "data.read_tables")
    kinds = arrow.types
    if isinstance(kind, arrow.UuidType):
        return str
    if isinstance(kind, arrow.BaseExtensionType):
        return _converter(kind.storage_type, feature, is_in_list)
    if kinds.is_dictionary(kind):
        return _converter(kind.value_type, feature, is_in_list)
    if kinds.is_integer(kind) and (names := _class_names(feature)):
        return lambda number: label_of(names, number)
    if kinds.is_date(kind) or kinds.is_time(kind) or kinds.is_timestamp(kind):
        return lambda moment: moment.isoformat()
    if kinds.is_decimal(kind):
        return str
    if kinds.is_map(kind):
        return _of_map(kind)
    if kinds.is_struct(kind):
        return _of_struct(kind, feature, is_in_list)
    if kinds.is_nested(kind) and hasattr(kind, "value_type"):  # lists of all kinds
        inner = _converter(kind.value_type, _element_of(feature), True)
        return inner and (lambda values: _each(inner, values))
    return None


def label_of(names: Sequence[str], number: int) -> Label | None:
    """Return the label for a number; None if no label has this number, such as −1 in `datasets`."""
    return Label(names[number], number) if 0 <= number < len(names) else None


def _class_names(feature: object) -> Sequence[str]:
    """Return the label names of a feature of `datasets`; [] if it is not a class label."""
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return []
    names = feature.get("names")
    return [str(name) for name in names] if isinstance(names, list) else []


def _element_of(feature: object) -> object:
    if isinstance(feature, dict):
        return feature.get("feature")
    return feature[0] if isinstance(feature, list) and feature else None


def _of_struct(kind: "DataType", feature: object, is_in_list: bool) -> Converter | None:
    described = feature if isinstance(feature, dict) else {}
    of_lists = _element_of(described)  # object of lists: how lists of objects are stored
    inner: dict[str, Converter | None] = {}
    for part in kind:
        of_part = described.get(part.name)
        if isinstance(of_lists, dict):
            of_part = {"feature": of_lists.get(part.name)}
        inner[part.name] = _converter(part.type, of_part, is_in_list)
    if not is_in_list and not any(inner.values()):
        return None

    def plain(value: Mapping[str, object]) -> dict[str, object]:
        kept = ((key, one) for key, one in value.items() if one is not None or not is_in_list)
        return {key: _one(inner.get(key), one) for key, one in kept}

    return plain


def _of_map(kind: "DataType") -> Converter:
    of_key, of_item = (_converter(part, None, True) for part in (kind.key_type, kind.item_type))

    def plain(entries: Sequence[tuple[object, object]]) -> object:
        pairs = [(_one(of_key, key), _one(of_item, item)) for key, item in entries]
        made = {k if isinstance(k, str) else json.dumps(k, default=str): item for k, item in pairs}
        return made if len(made) == len(pairs) else [list(pair) for pair in pairs]

    return plain


def _each(convert: Converter, values: Sequence[object]) -> list[object]:
    return [_one(convert, value) for value in values]


def _one(convert: Converter | None, value: object) -> object:
    return convert(value) if convert and value is not None else value
