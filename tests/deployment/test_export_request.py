"""What an export takes on the disk, which is told before it is begun."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import EXPORT_FORMATS
from infrastructure.core.checksums import write_record
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.deployment import export_request
from infrastructure.deployment.export import Work, _base_elsewhere, export_model
from infrastructure.deployment.export_request import (
    ExportFormat,
    ExportRequest,
    Part,
    Reading,
    check_possible,
    in_its_words,
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


@pytest.mark.parametrize(
    ("given", "is_plain", "is_merged", "is_small", "bits", "shown"),
    [
        ({}, True, False, False, None, "deployment.export_weights_unchanged()"),
        ({"part": Part.LORA}, False, False, False, None, "deployment.export_weights_unchanged()"),
        ({"part": Part.MERGED}, False, True, False, None, "deployment.export_weights_unchanged()"),
        ({"bits": 16}, False, False, False, 16, "16 bits a weight"),
        ({"bits": 8}, False, True, True, 8, "8 bits a weight"),
        ({"bits": 4, "part": Part.MERGED}, False, True, True, 4, "4 bits a weight"),
    ],
)
def test_a_request_shows_what_it_is(
    given: dict[str, Any],
    is_plain: bool,
    is_merged: bool,
    is_small: bool,
    bits: int | None,
    shown: str,
) -> None:
    request = ExportRequest(**given)
    found = (request.is_plain, request.is_merged, request.is_small, request.least_bits)
    assert found == (is_plain, is_merged, is_small, bits)
    assert request.words() == f"deployment.export_description(format=safetensors, bits={shown})"
    part = str(given.get("part", "auto"))
    assert request.facts() == {"as": part, "bits": given.get("bits"), "format": "safetensors"}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"part": Part.LORA, "bits": 8}, r"export_lora_with_bits\(bits=8\)"),
        ({"part": Part.LORA, "bits": 4}, r"export_lora_with_bits\(bits=4\)"),
        ({"bits": 5}, r"export_bits_unsupported\(format=safetensors, bits=5, possible=16, 8, 4\)"),
    ],
)
def test_what_cannot_be_combined_is_refused(given: dict[str, Any], code: str) -> None:
    with pytest.raises(ValueError, match=rf"deployment\.{code}"):
        ExportRequest(**given)


PLAIN: dict[str, Any] = {**WHOLE, "kind": "folder", "name": "a-model"}


@pytest.mark.parametrize(
    ("model", "given", "how"),
    [
        (PLAIN, {"bits": 16}, None),
        (PLAIN, {"part": Part.LORA}, "export_run_without_lora(run_id=mine)"),
        ({**PLAIN, "lora": {"r": 4}}, {"part": Part.LORA}, None),
        *(({**PLAIN, "kind": kind}, {"bits": 16}, None) for kind in ("hub", "embedded")),
        ({**PLAIN, "kind": "lora folder", "lora": {"r": 4}}, {"part": Part.MERGED}, None),
        ({**PLAIN, "kind": "registered"}, {}, None),
        (
            {**PLAIN, "kind": "registered"},
            {"bits": 16},
            "export_other_model_kind(run_id=mine, model=a-model)",
        ),
        ({**PLAIN, "extensions": ["a", "b"]}, {}, None),
        (
            {**PLAIN, "extensions": ["a", "b"]},
            {"bits": 16},
            "export_extension_weights(run_id=mine, extensions=a, b)",
        ),
        ({**PLAIN, "sees": True}, {"bits": 16}, None),
        ({**PLAIN, "sees": True}, {"bits": 8}, "export_vision_model(run_id=mine)"),
        ({**PLAIN, "sees": True}, {"form": "checked"}, "export_vision_model(run_id=mine)"),
        (PLAIN, {"form": "checked"}, "checked as folder in None bits"),
        (PLAIN, {"form": "checked", "bits": 8}, "checked as folder in 8 bits"),
        (PLAIN, {"bits": 8}, "bitsandbytes for deployment.model_of_bits(bits=8)"),
        (
            {**PLAIN, "rounding": {"bits": 4, "package": "torchao"}},
            {"bits": 4},
            "torchao for deployment.model_of_bits(bits=4)",
        ),
        (
            {**PLAIN, "rounding": {"bits": 4, "package": "torchao"}},
            {"bits": 8},
            "bitsandbytes for deployment.model_of_bits(bits=8)",
        ),
    ],
)
def test_what_a_run_does_not_support_is_refused_before_its_model_is_loaded(
    model: dict[str, Any],
    given: dict[str, Any],
    how: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(package: str, purpose: str) -> None:
        raise ValueError(f"{package} for {purpose}")

    class Checked(PlainTensors):
        bits = (8,)

        def check(self, model: dict[str, Any], bits: int | None) -> None:
            raise ValueError(f"checked as {model['kind']} in {bits} bits")

    run = RunDirectory(tmp_path / "mine")
    write_record(run.run_file, {"configuration": DeploymentConfig().to_dict(), "model": model})
    monkeypatch.setattr(export_request, "refuse_missing", missing)
    with EXPORT_FORMATS.registered("checked", Checked):
        request = ExportRequest(**given)
        if how is None:
            check_possible(run, tmp_path, request)
            return
        with pytest.raises(ValueError, match=re.escape(how)):
            check_possible(run, tmp_path, request)


def test_a_disk_needs_space_for_the_export_and_a_little_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "mine")
    write_record(run.run_file, {"configuration": DeploymentConfig().to_dict(), "model": PLAIN})
    looked_at: list[Path] = []

    def usage(path: Path) -> Any:
        looked_at.append(path)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(export_request.shutil, "disk_usage", usage)
    free = 4_000_000 + 100_000_000
    check_possible(run, tmp_path / "not/yet/there", ExportRequest())
    assert looked_at == [tmp_path]
    free -= 1
    out = tmp_path / "out"
    sizes = r"needed=3\.8 MiB, free=99\.2 MiB"
    with pytest.raises(StorageError, match=rf"export_disk_full\(folder={out}, {sizes}\)"):
        check_possible(run, out, ExportRequest())


@pytest.mark.parametrize(("method", "is_refused"), [("reward", True), ("dpo", False)])
@pytest.mark.parametrize("bits", [None, 16])
def test_a_model_that_scores_is_exported_only_as_it_is(
    method: str, is_refused: bool, bits: int | None, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "mine")
    config = DeploymentConfig(training={"method": method})
    write_record(run.run_file, {"configuration": config.to_dict(), "model": PLAIN})
    if is_refused and bits:
        with pytest.raises(
            ValueError, match=rf"export_reward_model\(run_id=mine, path={run.final}\)"
        ):
            check_possible(run, tmp_path, ExportRequest(bits=bits))
    else:
        check_possible(run, tmp_path, ExportRequest(bits=bits))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError("a\nb"), "a"), (KeyError(), "KeyError"), (RuntimeError(" \n"), "RuntimeError")],
)
def test_an_error_of_a_library_is_named_with_its_first_line(error: Exception, reason: str) -> None:
    kind = type(error).__name__
    of = rf"library=the-library, error_type={kind}, reason={reason}\)"
    refused = pytest.raises(ValueError, match=rf"deployment\.export_library_failed\({of}")
    with refused, in_its_words("the-library"):
        raise error


def test_a_lora_whose_base_is_a_folder_here_has_a_note(tmp_path: Path) -> None:
    assert _base_elsewhere(tmp_path) == []
    (tmp_path / "base").mkdir()
    for base, num_notes in ((str(tmp_path / "base"), 1), ("owner/name", 0), (None, 0)):
        settings = {"base_model_name_or_path": base}
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
        note = f"deployment.exported_lora_local_base(base={base})"
        assert _base_elsewhere(tmp_path) == [note] * num_notes


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


def test_a_format_s_own_bits_are_what_is_needed_unless_others_are_given() -> None:
    class Halves(PlainTensors):
        """Written with two bytes a weight, whatever the trained format."""

        bits, default_bits, converts_folder = (16, 4), 16, True

    name = "half-tensors"
    with EXPORT_FORMATS.registered(name, Halves):
        usual, small = ExportRequest(form=name), ExportRequest(form=name, bits=4)
        assert (usual.least_bits, usual.is_merged, usual.is_small) == (16, True, False)
        assert (small.least_bits, small.is_small) == (4, False)
        assert needed_bytes(WHOLE, usual) == 4_000_000 + 2_000_000 + BESIDE
        assert needed_bytes(LORA, usual) == 2_000_000 + 2_000_000 + BESIDE
        assert needed_bytes(WHOLE, small) == 2_000_000 + 500_000 + BESIDE


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
