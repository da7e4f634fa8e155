import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.monitoring.drawing.metrics_file import (
    decode_record,
    encode_record,
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
    several = torch.tensor([0.5, 1.5])
    token = "hf_" + "A1b2C3d4E5" * 3
    assert plain_record({token: token, "f": several}) == {"***": "***", "f": str(several)}


def test_a_line_without_an_object_is_refused() -> None:
    with pytest.raises(ValueError) as raised:
        decode_record(b"[1]")
    assert str(raised.value) == "monitoring.metrics_line_not_an_object(type_name=list)"


def test_damaged_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = encode_record({"step": 1})
    path.write_bytes(good + b"\x00\x00\xff\n" + b"[1, 2]\n" + good + b'{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1}, {"step": 1}]
