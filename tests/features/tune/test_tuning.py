"""`temper tune` on a real small model: it measures, tells, and prints flags that can be typed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.flags import as_flag
from infrastructure.config.sources.spelling import as_keyword
from infrastructure.core.messages import spelled_by
from infrastructure.features.tune import tuning
from infrastructure.features.tune.learning_rate_range import RangeTest
from infrastructure.features.tune.trials import TuningTrials
from infrastructure.features.tune.tuning import (
    TuningResults,
    alternatives,
    describe,
    find_fastest,
)
from infrastructure.optimization.pipeline_optimizer import Measured, Tried
from infrastructure.training.core import precision, product_choice
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import BatchPlan
from tests.deployment.runs import small_settings


def test_what_somebody_gave_is_not_tried(tmp_path: Path) -> None:
    given = {"mixed_precision": "fp32", "compile_mode": "default"}
    config = DeploymentConfig(**small_settings(tmp_path, **given))
    tried = alternatives(config, TuningTrials(config).trainer({}))
    assert tried == {"training.gradient_checkpointing": [True], "data.prefetch_factor": [4, 8]}
    on_gpu: Any = SimpleNamespace(
        device=torch.device("cuda"), precision=SimpleNamespace(name="bf16")
    )
    assert alternatives(DeploymentConfig(), on_gpu) == {
        "training.mixed_precision": ["fp16", "fp32"],
        "training.gradient_checkpointing": [True],
        "training.compile_mode": ["default"],
        "data.prefetch_factor": [4, 8],
        "data.pin_memory": [False],
    }
    on_gpu.device = torch.device("cpu")
    assert alternatives(DeploymentConfig(), on_gpu)["training.mixed_precision"] == ["fp32"]


@pytest.mark.parametrize("is_faster", [True, False])
def test_all_that_was_measured_is_returned_and_reported(
    is_faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A given batch stays; each setting is tried with the best ones before it."""
    settings = small_settings(tmp_path, mixed_precision="fp32")
    del settings["data"]["num_workers"]
    config = DeploymentConfig(**settings)
    key = {name.rpartition(".")[2]: name for name in alternatives(config, cpu_trainer())}
    speeds = {"gradient_checkpointing": 900.0, "compile_mode": 2000.0, "prefetch_factor": 2050.0}
    measured: list[list[str]] = []

    def measure(trials: TuningTrials, changes: Mapping[str, object]) -> Measured:
        measured.append([name.rpartition(".")[2] for name in changes])
        if len(measured) == 7 and not is_faster:
            return Measured(500.0, 1)
        if changes.get(key["prefetch_factor"]) == 8:
            raise ValueError("no room")
        return Measured(speeds[measured[-1][-1]] if changes else 1000.0, 2 << 20)

    rates = {0: 100.0, 1: 109.0, 2: 111.0}
    monkeypatch.setattr(TuningTrials, "measure", measure)
    monkeypatch.setattr(TuningTrials, "rows_per_second", lambda _, count: rates[count])
    monkeypatch.setattr(tuning, "worker_counts", lambda: [*rates])
    found = RangeTest((), (), 0.5, 0.0123456)
    tested: list[object] = []

    def learning_rates(trials: TuningTrials) -> RangeTest:
        tested.append(trials.config.value("training.compile_mode"))
        return found

    monkeypatch.setattr(TuningTrials, "learning_rates", learning_rates)
    lines: list[str] = []
    with spelled_by(as_flag):
        results = find_fastest(config, True, lines.append)
    assert measured == [
        *([], ["gradient_checkpointing"], ["compile_mode"]),
        *(["compile_mode", "prefetch_factor"], ["compile_mode", "prefetch_factor"]),
        *([], ["compile_mode"]),
    ]
    taken = {"training.compile_mode": "default"} if is_faster else {}
    assert results["settings"] == {
        **taken,
        **{"data.num_workers": 2, "training.learning_rate": 0.012},
    }
    words = "--compile-mode default " if is_faster else ""
    assert results["flags"] == f"{words}--num-workers 2 --learning-rate 0.012"
    assert results["learning_rate"] == {"suggested": 0.0123456, "explodes_at": 0.5}
    assert tested == ["default" if is_faster else config.value("training.compile_mode")]

    def tried(name: str, value: object, speed: float | None, **more: object) -> dict[str, object]:
        peak = None if speed is None else 2 << 20
        shown = {"key": name, "value": value, "tokens_per_second": speed, "peak_bytes": peak}
        return {**shown, "refusal": "", "taken": False, **more}

    assert results["tried"] == [
        tried("", None, 1000.0, taken=True),
        tried("training.gradient_checkpointing", True, 900.0),
        tried("training.compile_mode", "default", 2000.0, taken=True),
        tried("data.prefetch_factor", 4, 2050.0),
        tried("data.prefetch_factor", 8, None, refusal="no room"),
        *(
            {"key": "data.num_workers", "value": count, "rows_per_second": speed}
            for count, speed in rates.items()
        ),
    ]
    basis = "tune.batch_basis(micro_batch_size=4, global_batch_size=4, precision=fp32)"
    tuned, verdict = (2000.0, "") if is_faster else (500.0, "tune.not_faster()")
    assert lines == [
        f"tune.as_configured(){basis}: 1,000 tokens/s, 2.0 MiB",
        "--gradient-checkpointing: 900 tokens/s, 2.0 MiB: no faster",
        "--compile-mode default: 2,000 tokens/s, 2.0 MiB: taken",
        "--prefetch-factor 4: 2,050 tokens/s, 2.0 MiB: hardly faster",
        "--prefetch-factor 8: not here: no room",
        f"tune.compared_again(configured=1000.0, tuned={tuned}, verdict={verdict})",
        "data.num_workers 0: 100 rows/s prepared",
        "data.num_workers 1: 109 rows/s prepared",
        "data.num_workers 2: 111 rows/s prepared",
        *found.lines(),
    ]


@pytest.mark.parametrize("has_gain", [False, True])
def test_an_automatic_batch_is_as_a_run_would_choose_it(
    has_gain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting that it is compared with in the end, if any, is measured, too."""
    config = DeploymentConfig(**small_settings(tmp_path, batch_size="auto", mixed_precision="fp32"))
    measured: list[dict[str, object]] = []

    def measure(trials: TuningTrials, changes: Mapping[str, object]) -> Measured:
        measured.append({"training.batch_size": trials.config.training.batch_size, **changes})
        is_gain = has_gain and len(measured) < 7 and "training.compile_mode" in changes
        return Measured(2000.0 if is_gain else 1000.0, 1)

    plan = BatchPlan(8, 2, "why")
    monkeypatch.setattr(EnhancedTrainer, "batch_plan", lambda _: plan)
    monkeypatch.setattr(TuningTrials, "measure", measure)
    results = find_fastest(config, report=lambda line: None)
    assert results["settings"] == plan.resolved()
    assert {one["training.batch_size"] for one in measured} == {8}
    compared = [
        {"training.batch_size": 8},
        {**plan.resolved(), "training.compile_mode": "default"},
    ]
    assert measured[5:] == (compared if has_gain else [])


@pytest.mark.parametrize("reason", ["", "why"])
def test_a_step_is_split_into_the_fastest_pieces(reason: str) -> None:
    searched: list[object] = []

    def search(whole: int, pieces_of: Callable[[int], int], beside: int) -> SimpleNamespace:
        searched.extend([whole, beside, [pieces_of(size) for size in (1, 3, 8)]])
        return SimpleNamespace(size=3, reason=reason, lines=lambda: ["3: fast", "8: slow"])

    trainer: Any = SimpleNamespace(
        batch_plan=lambda: BatchPlan(4, 2),
        cost_measurement=lambda: SimpleNamespace(search=search),
    )
    lines: list[str] = []
    plan = tuning._as_many_in_a_step(trainer, lines.append)
    assert plan == BatchPlan(3, 3, reason, ("3: fast", "8: slow"))
    assert searched == [8, 4, [8, 3, 1]]
    why = reason or "tune.whole_step_at_once(size=8)"
    key = "key=training.batch_size, micro_batch=3, global_batch=8"
    assert lines == [f"tune.tuned_micro_batch({key}, reason={why})", "  3: fast", "  8: slow"]


def test_the_tokens_of_a_run_are_those_of_usual_examples() -> None:
    loop = SimpleNamespace(global_batch_size=4, total_steps=10)
    trainer: Any = SimpleNamespace(
        prepare=lambda: SimpleNamespace(loop=loop),
        cost_measurement=lambda: SimpleNamespace(usual=[5, 6, 7]),
        adapter=SimpleNamespace(count_tokens=lambda usual: 2 * sum(usual)),
    )
    assert tuning._num_tokens(trainer) == 10 * (36 * 4 // 3)


def cpu_trainer() -> Any:
    return SimpleNamespace(device=torch.device("cpu"), precision=SimpleNamespace(name="fp32"))


@pytest.mark.parametrize("batch_size", ["auto", None, 4])
def test_a_micro_batch_is_chosen_unless_one_was_given(
    batch_size: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path)
    del settings["training"]["batch_size"]
    if batch_size is not None:
        settings["training"]["batch_size"] = batch_size
    config = DeploymentConfig(**settings)
    plan = BatchPlan(8, 2, "why", ("8: fast",))
    monkeypatch.setattr(tuning, "_as_many_in_a_step", lambda trainer, report: plan)
    monkeypatch.setattr(EnhancedTrainer, "batch_plan", lambda _: plan)
    results: TuningResults = {"settings": {}, "tried": []}
    lines: list[str] = []
    changed = tuning._with_batch(config, results, lines.append).training
    if batch_size == 4:
        assert (changed.batch_size, results) == (4, {"settings": {}, "tried": []})
        return
    assert (changed.batch_size, changed.gradient_accumulation) == (8, 2)
    assert lines == ([] if batch_size is None else plan.lines())
    assert results == {
        "settings": {"training.batch_size": 8, "training.gradient_accumulation": 2},
        "tried": [],
        "batch": {"origin": "why", "trials": ["8: fast"]},
    }


def test_settings_are_kept_if_the_configured_ones_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = TuningTrials(DeploymentConfig(**small_settings(tmp_path)))
    lines: list[str] = []
    results: TuningResults = {"settings": {}, "tried": []}
    error: Exception = torch.OutOfMemoryError("full")

    def measure(_: TuningTrials, changes: object) -> Measured:
        raise error

    monkeypatch.setattr(TuningTrials, "measure", measure)
    assert tuning._is_faster(trials, results, lines.append)
    assert lines == ["tune.configured_out_of_memory()"]
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        tuning._is_faster(trials, results, lines.append)


def test_trials_compute_in_the_format_that_the_run_will_train_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    trials = TuningTrials(DeploymentConfig(**small_settings(tmp_path)))
    assert trials.trainer({}).precision.name == "fp32"
    assert trials.trainer({"training.mixed_precision": "bf16"}).precision.name == "bf16"


def test_the_range_test_suggests_a_rate_that_trains(tmp_path: Path) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))
    found = TuningTrials(config).learning_rates()
    assert found.suggested is not None
    assert 1e-6 < found.suggested < 1.0


def test_a_line_of_tuning_can_be_typed() -> None:
    slow = Measured(900.0, 100)
    tried = Tried("training.gradient_checkpointing", True, slow, best=Measured(1000.0, 100))
    with spelled_by(as_flag):
        assert describe(tried).startswith("--gradient-checkpointing: 900 tokens/s")
    with spelled_by(as_keyword):
        assert describe(tried).startswith("gradient_checkpointing=True: 900 tokens/s")
    tried = Tried("data.pin_memory", False, slow, best=slow)
    with spelled_by(as_flag):
        assert describe(tried).startswith("--no-pin-memory: ")
    tried = Tried("data.prefetch_factor", 4, slow, best=slow)
    with spelled_by(as_flag):
        assert describe(tried).startswith("--prefetch-factor 4: ")


def test_a_faster_mode_that_does_not_pay_has_its_reason() -> None:
    plain, compiled = Measured(1000.0, 100), Measured(1500.0, 100, setup_seconds=20.0)
    tried = Tried("training.compile_mode", "default", compiled, best=plain, num_tokens=2000)
    assert describe(tried).endswith("tune.setup_too_slow(setup_time=20 s, run_time=2.0 s)")


def test_settings_that_are_no_faster_one_after_the_other_are_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))

    def measure(_: TuningTrials, changes: Mapping[str, object]) -> Measured:
        return Measured(900.0 if changes else 1000.0, 1)

    monkeypatch.setattr(TuningTrials, "measure", measure)
    lines: list[str] = []
    results: TuningResults = {"settings": {"training.mixed_precision": "fp32"}, "tried": []}
    assert not tuning._is_faster(TuningTrials(config), results, lines.append)
    assert "tune.not_faster" in lines[-1]
    assert "tune.compared_again(configured=1000.0, tuned=900.0, " in lines[-1]
    monkeypatch.setattr(TuningTrials, "measure", lambda *_: Measured(1000.0, 1))
    assert not tuning._is_faster(TuningTrials(config), results, lines.append)
