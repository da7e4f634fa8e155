"""What an export takes on the disk, which is told before it is begun."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.config.registries import EXPORT_FORMATS
from infrastructure.core.errors import CheckpointError
from infrastructure.deployment.export import Work, export_model
from infrastructure.deployment.export_request import (
    ExportFormat,
    ExportRequest,
    Part,
    Reading,
    needed_bytes,
)
from infrastructure.run.directory import RunDirectory
from tests.deployment.exports import facts_of
from tests.deployment.runs import deploy, small_config

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


NAME = "plain-tensors"


class PlainTensors(ExportFormat):
    """One file of tensors, which a model of the same class loads."""

    bits = ()
    converts_folder = True
    usage = "weights = load_file('w.safetensors')"
    spoilt = 0.0
    reads = True

    def check(self, model: dict[str, Any], bits: int | None) -> None:
        if not model:
            raise ValueError("a run without a record")

    def write(self, work: Work, folder: Path) -> Iterator[Reading]:
        made = type(work.model)(work.model.config)
        with work.whole_model(folder) as whole:
            tensors = load_file(whole / "model.safetensors")
            save_file(tensors, folder / "w.safetensors")
        made.load_state_dict(load_file(folder / "w.safetensors"), strict=False)
        made.tie_weights()
        with torch.no_grad():
            next(made.parameters()).mul_(1 - self.spoilt)
        if self.reads:
            yield Reading("torch", work.logits_of(made))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder, _ = deploy(small_config(tmp_path_factory.mktemp("run"), max_steps=1))
    return RunDirectory(folder)


@pytest.fixture
def request_of() -> Iterator[ExportRequest]:
    with EXPORT_FORMATS.registered(NAME, PlainTensors):
        yield ExportRequest(form=NAME)


def test_it_is_read_back_and_its_card_has_its_usage(
    run: RunDirectory, request_of: ExportRequest, tmp_path: Path
) -> None:
    export_model(run, None, tmp_path / "out", request_of)
    [compared] = facts_of(tmp_path / "out")["compared"]
    assert compared["read_by"] == "torch"
    assert compared["logits_distance"] < 1e-4
    assert PlainTensors.usage in (tmp_path / "out" / "README.md").read_text()
    model = {"num_parameters": 1_000_000, "dtype": "bfloat16"}
    assert needed_bytes(model, request_of) == 2 * 2_000_000 + 125_000
    with pytest.raises(ValueError, match=r"export_bits_unsupported\(format=plain-tensors, bits=8"):
        ExportRequest(form=NAME, bits=8)


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({"spoilt": 0.9}, CheckpointError, "export_differs_from_model"),
        ({"reads": False}, ValueError, "export_not_read_back"),
    ],
)
def test_what_is_another_model_or_not_compared_is_not_kept(
    change: dict[str, Any],
    error: type[Exception],
    code: str,
    run: RunDirectory,
    request_of: ExportRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(PlainTensors, name, value)
    with pytest.raises(error, match=code):
        export_model(run, None, tmp_path / "out", request_of)
    assert list(tmp_path.iterdir()) == []
