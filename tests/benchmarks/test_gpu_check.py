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
    """A bench with short rows, in a process whose other tests may use any operation."""
    monkeypatch.setattr(bench, "ROW_CHARACTERS", 100)
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


@TWO_GPUS
def test_two_gpus_are_skipped_with_a_word_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    found = gpu_check.run_here(check, Bench(tmp_path, "cuda"))
    assert found == {"verdict": "skipped", "why": "there is one GPU"}


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


def test_without_time_a_check_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_check, "TOTAL_SECONDS", 0.0)
    found = gpu_check.run_all(["bf16"], Bench(tmp_path, "cpu"))
    assert found["bf16"]["why"] == "the time is over"


def test_speeds_of_all_systems_stand_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU all three measure a tiny model, whatever the check is called."""
    speeds = {"temper": 300, "trl": 200, "unsloth": None}

    def planted(bench: Bench, system: str, shape: str) -> dict[str, object]:
        assert shape == "tiny"
        tokens = speeds[system]
        return {"tokens_per_second": tokens} if tokens else {"failed": "no GPU"}

    monkeypatch.setattr(speed, "_in_process", planted)
    monkeypatch.setattr(speed, "measure_operations_per_second", lambda *_: 1e9)
    monkeypatch.setattr(Bench, "tokens_per_row", 100.0)
    found = gpu_check.run_here("speed_llama_8b", Bench(tmp_path, "cpu"))
    assert (found["verdict"], found["times_faster_than"]) == ("pass", {"trl": 1.5})
    arithmetic = speed.lora_arithmetic("tiny")
    share = 300 * (arithmetic.per_token + 100 * arithmetic.per_token_and_position) / 1e9
    text = gpu_check.page({"device": "cpu", "torch": "2"}, {"speed_llama_8b": found})
    assert f"| tiny | temper | 300 | - | {share:.0%} |" in text
    assert "| tiny | unsloth | no GPU | - | - |" in text
    assert "| speed_llama_8b | pass |  |" in text
    assert speed.speed_table({"bf16": {"verdict": "pass"}}) == ""


def test_a_lora_computes_no_gradients_of_the_weights() -> None:
    model = made_on("meta", "tiny")
    per_token = speed.lora_arithmetic("tiny").per_token
    alone = arithmetic_of(model.requires_grad_(False)).per_token
    assert alone < per_token < 1.1 * alone


def test_the_largest_difference_is_relative() -> None:
    assert largest_difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
