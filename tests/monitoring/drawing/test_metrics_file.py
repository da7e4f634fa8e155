import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.monitoring.drawing.metrics_file import (
    decode_record,
    encode_record,
    parse_metrics,
    plain_record,
    read_metrics,
    spell_numbers,
)


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def test_a_line_is_strict_json_and_brings_nan_back() -> None:
    record = {"step": 3, "loss": math.nan, "grad_norm": math.inf, "low": -math.inf, "kind": "x"}
    line = encode_record(record)
    strict = json.loads(line, parse_constant=refuse_constant)
    assert strict["loss"] == "NaN"
    assert strict["grad_norm"] == "Infinity"
    again = decode_record(line)
    assert math.isnan(again.pop("loss"))
    assert again == {"step": 3, "grad_norm": math.inf, "low": -math.inf, "kind": "x"}


def test_nested_numbers_are_spelled() -> None:
    spelled = spell_numbers({"exact_match": {"all": math.nan}, "losses": [1.0, math.inf]})
    assert spelled == {"exact_match": {"all": "NaN"}, "losses": [1.0, "Infinity"]}


def test_text_with_a_lone_surrogate_can_be_written() -> None:
    assert decode_record(encode_record({"task": "a\udc80b"})) == {"task": "a\udc80b"}


def test_tensor_and_array_scalars_become_numbers() -> None:
    record = plain_record(
        {"a": torch.tensor(0.5), "b": np.float32(0.25), "c": [1, 2], "d": None, "e": 7}
    )
    assert record == {"a": 0.5, "b": 0.25, "c": "[1, 2]", "d": None, "e": 7}
    assert type(record["e"]) is int


def test_a_torn_last_line_is_left_out_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_record({"step": 1, "loss": 2.0}) + b'{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]
    assert caplog.records == []


def test_a_damaged_line_in_the_middle_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    good = encode_record({"step": 1})
    path.write_bytes(good + b"\x00\x00\xff\n" + b"[1, 2]\n" + good)
    with caplog.at_level(logging.WARNING):
        assert len(read_metrics(path)) == 2
    assert ", count=2, first=2)" in caplog.text
    assert parse_metrics(path).unreadable_lines == [2, 3]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "metrics.jsonl")
