"""Reading and writing of `metrics.jsonl`: strict JSON, one object per line, in order of steps.

JSON has no NaN and no infinity. They are written as the strings "NaN", "Infinity" and "-Infinity"
(the spelling of the protobuf JSON mapping) and become numbers again on reading. Text with one of
these three spellings therefore cannot be stored as text.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import parse_json
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact_shapes
from infrastructure.monitoring.drawing.formatting import NOT_FINITE, not_finite_name

logger = logging.getLogger(__name__)

FINITE_AGAIN = {text: float(text) for text in NOT_FINITE.values()}

Record = dict[str, Any]


@dataclass
class ParsedMetrics:
    """The contents of a metrics file.

    Attributes:
        records: the readable lines, in order.
        unreadable_lines: the numbers, from 1, of complete lines that are not JSON objects. An
            incomplete last line, as a kill leaves it, is not an error and is not included.
    """

    records: list[Record] = field(default_factory=list)
    unreadable_lines: list[int] = field(default_factory=list)


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


def parse_metrics(path: Path) -> ParsedMetrics:
    """Return all readable records of the file, and the numbers of the unreadable lines.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    parsed = ParsedMetrics()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                parsed.records.append(decode_record(line))
            except ValueError:
                parsed.unreadable_lines.append(number)
    return parsed


def read_metrics(path: Path) -> list[Record]:
    """Return the records of `metrics.jsonl`, with NaN and infinity restored.

    An incomplete last line is left out. Other unreadable lines are left out with a warning.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    parsed = parse_metrics(path)
    if parsed.unreadable_lines:
        first, count = parsed.unreadable_lines[0], len(parsed.unreadable_lines)
        logger.warning(
            phrase("monitoring.unreadable_lines_skipped", path=path, count=count, first=first)
        )
    return parsed.records
