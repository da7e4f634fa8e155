"""The check of a machine with a GPU: its short form on a CPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import bench, numerics, several, speed
from benchmarks.gpu_check.bench import Bench, largest_difference, made_on
from infrastructure.models.flops import arithmetic_of
from tests.slow import slow


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench with a few short rows and a narrow model, in a process whose other tests may use any
    operation."""
    monkeypatch.setattr(bench, "ROW_CHARACTERS", 100)
    monkeypatch.setattr(bench, "NUM_ROWS", 80)
    narrow = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 2048}
    monkeypatch.setitem(bench.SHAPES, "tiny", {**bench.TINY, **narrow})
    monkeypatch.setattr(numerics.torch, "use_deterministic_algorithms", lambda on: None)
    return Bench(tmp_path, "cpu")


def test_a_resume_is_checked_on_any_device_and_other_numbers_would_show(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gpu_check.run_here("resume_is_exact", small)
    assert found == {"verdict": "pass", "differing_tensors": 0}
    restore = numerics.restored

    def forgetful(*args: object) -> object:
        trainer = restore(*args)  # type: ignore[arg-type]
        numerics.torch.manual_seed(7)
        return trainer

    shutil.rmtree(small.folder / "half")
    monkeypatch.setattr(numerics, "restored", forgetful)
    assert gpu_check.run_here("resume_is_exact", small)["verdict"] == "fail"


@pytest.mark.parametrize("name", ["cpu_equals_gpu", "fp16_with_scaler", "checkpoint_stall"])
def test_what_needs_a_gpu_is_skipped_without_one(name: str, tmp_path: Path) -> None:
    found = gpu_check.run_here(name, Bench(tmp_path, "cpu"))
    assert found == {"verdict": "skipped", "why": "there is no GPU"}


TWO_GPUS = pytest.mark.parametrize("check", ["two_gpus_equal_one", "two_gpus_spread_equal_one"])


@slow
@TWO_GPUS
def test_two_processes_of_a_cpu_are_compared_as_two_gpus_are(
    small: Bench, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    found = gpu_check.run_here(check, small)
    assert (found["verdict"], found["devices"]) == ("pass", ["cpu", "cpu"])
    monkeypatch.setattr(several, "largest_difference", lambda *_: 0.01)
    assert gpu_check.run_here(check, small)["verdict"] == "fail"


@slow
def test_each_check_has_its_line_and_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu"]
    command += ["--only", "cpu_equals_gpu", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cpu_equals_gpu               skipped" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["checks"]["cpu_equals_gpu"]["why"] == "there is no GPU"
    assert found["environment"]["device"] == "cpu"


@slow
def test_a_check_that_breaks_fails_and_spoils_no_other(tmp_path: Path) -> None:
    found = gpu_check.run_apart("no_such_check", Bench(tmp_path, "cpu"), 120)
    assert found["verdict"] == "fail"
    assert "no_such_check" in found["why"]


def test_a_lora_computes_no_gradients_of_the_weights() -> None:
    model = made_on("meta", "tiny")
    per_token = speed.lora_arithmetic("tiny").per_token
    alone = arithmetic_of(model.requires_grad_(False)).per_token
    assert alone < per_token < 1.1 * alone


def test_the_largest_difference_is_relative() -> None:
    assert largest_difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
