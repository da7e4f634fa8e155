"""Reading and writing of `metrics.jsonl`: strict JSON, one object per line, in order of steps.

JSON has no NaN and no infinity. Such numbers are written as the strings "NaN", "Infinity" and
"-Infinity" (as in protobuf's JSON mapping), which become numbers again on reading. So these three
strings cannot be stored as text.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import parse_json
from infrastructure.core.redact import redact_shapes
from infrastructure.monitoring.drawing.formatting import NOT_FINITE, not_finite_name

FINITE_AGAIN = {text: float(text) for text in NOT_FINITE.values()}

Record = dict[str, Any]


def plain_value(value: Any) -> object:
    """Return `value` as bool, int, float, str or None. Array and tensor scalars become numbers."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def plain_record(record: Mapping[str, object]) -> Record:
    """Return `record` with plain values, and with secrets masked in its keys and strings."""
    plain = {redact_shapes(str(key)): plain_value(value) for key, value in record.items()}
    return {k: redact_shapes(v) if isinstance(v, str) else v for k, v in plain.items()}


def spell_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """Return `values`, nested or not, with non-finite floats replaced by their names."""
    return {key: _spelled(inner) for key, inner in values.items()}


def _spelled(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _spelled(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(inner) for inner in value]
    return (not_finite_name(value) or value) if isinstance(value, float) else value


def encode_record(record: Mapping[str, object]) -> bytes:
    """Return one line of the file, including its line end."""
    line = json.dumps(spell_numbers(record), ensure_ascii=False, allow_nan=False)
    return line.encode(errors="backslashreplace") + b"\n"  # a lone surrogate becomes its escape


def decode_record(line: bytes) -> Record:
    """Return the record in one line.

    Raises:
        ValueError: if the line is not a JSON object in UTF-8.
    """
    record = parse_json(line)
    if not isinstance(record, dict):
        raise InputError("monitoring.metrics_line_not_an_object", type_name=type(record).__name__)
    return {
        key: FINITE_AGAIN.get(value, value) if isinstance(value, str) else value
        for key, value in record.items()
    }


def read_metrics(path: Path, last_bytes: int | None = None) -> list[Record]:
    """Return the records of a metrics file, without lines that are damaged or incomplete.

    Args:
        last_bytes: read only the records in the last bytes of the file; by default, all.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    with path.open("rb") as file:
        start = 0 if last_bytes is None else max(0, file.seek(0, 2) - last_bytes)
        file.seek(start)
        lines = file.read().split(b"\n")
    records = []
    for line in lines[1 if start else 0 : -1]:
        with suppress(ValueError):
            records.append(decode_record(line))
    return records
