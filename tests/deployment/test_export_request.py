"""What an export takes on the disk, which is told before it is begun."""

from typing import Any

import pytest

from infrastructure.deployment.export_request import ExportRequest, Part, needed_bytes

WHOLE = {"num_parameters": 1_000_000, "num_trainable": 10_000, "dtype": "float32"}
HALF: dict[str, Any] = {**WHOLE, "dtype": "bfloat16"}
LORA: dict[str, Any] = {**HALF, "lora": {"r": 8}}
BESIDE = 125_000


@pytest.mark.parametrize(
    ("model", "request_of", "expected"),
    [
        (WHOLE, {}, 4_000_000),
        (HALF, {}, 2_000_000),
        (WHOLE, {"bits": 16}, 2_000_000),
        (LORA, {}, 40_000),
        (LORA, {"part": Part.MERGED}, 2_000_000),
        (WHOLE, {"bits": 8}, 2_000_000 + 1_000_000 + BESIDE),
        (WHOLE, {"bits": 4}, 2_000_000 + 500_000 + BESIDE),
        (LORA, {"bits": 4}, 2_000_000 + 500_000 + BESIDE),
        ({}, {}, 0),
    ],
)
def test_an_export_takes_as_much_as_it_writes_and_what_it_is_made_of(
    model: dict[str, Any],
    request_of: dict[str, Any],
    expected: int,
) -> None:
    assert needed_bytes(model, ExportRequest(**request_of)) == expected
