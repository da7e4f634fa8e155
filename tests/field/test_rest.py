"""F14 to F23: options, extensions of a run, and sentences that fit."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import small_settings
from tests.training.quantum.quantum_runs import quantum_trainer, records

ROOT = Path(__file__).parents[2]


def test_f14_pytest_runs_a_notebook_of_a_clone(pytestconfig: pytest.Config) -> None:
    """The tests' own settings leave the plugin alone that the page of the notebooks names."""
    assert pytestconfig.pluginmanager.hasplugin("nbmake")
    assert "--nbmake" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("problem", ["data_selection", "block_selection", "rank_allocation"])
def test_f15_quantum_steps_asked_for_by_a_frequency_are_made(
    problem: str, saved_llama: Path, tmp_path: Path
) -> None:
    """A step costs seconds and a training step milliseconds here, so each bound would skip it."""
    lora = LoraConfig(r=4) if problem == "rank_allocation" else None

    def outcomes(frequency: int | None, **quantum: Any) -> list[object]:
        trainer = quantum_trainer(
            saved_llama,
            tmp_path,
            quantum={"problem": problem, **quantum},
            lora=lora,
            optimization_frequency=frequency,
        )
        trainer.train()
        return [record["outcome"] for record in records(trainer)]

    default = {"max_overhead_percent": "auto"}
    asked = outcomes(3, **default)
    assert set(asked) == {"answered"}
    assert len(asked) >= (1 if problem == "rank_allocation" else 2)
    assert set(outcomes(3, max_overhead_percent=1e-6)) == {"skipped"}
    assert set(outcomes(None, **default)) == {"skipped"}


def test_f15_a_bound_that_nobody_gave_makes_the_question_small(
    saved_llama: Path, tmp_path: Path
) -> None:
    """Not as large as it may be: of more rows than are needed, the fewest are looked at."""
    rows = "".join(f'{{"question": "What is {n}?", "answer": "It is {n}."}}\n' for n in range(60))
    (tmp_path / "rows.jsonl").write_text(rows)
    trainer = quantum_trainer(
        saved_llama, tmp_path, quantum={"max_overhead_percent": "auto"}, optimization_frequency=4
    )
    trainer.train()
    for record in records(trainer):
        assert record["outcome"] == "answered"
        assert "of the 16 that were looked at" in record["chosen"]


def stack_trainings(folder: Path, *runs: dict[str, Any]) -> list[dict[str, Any]]:
    """The weights that each stack-wise training of three layers ends with, in one process."""
    ended = []
    for training in runs:
        settings = small_settings(folder, num_epochs=1, **training)
        settings["model"]["embedded"]["num_layers"] = 3
        trainer = TrainerFactory().for_run(DeploymentConfig(**settings))
        trainer.train()
        assert trainer.model is not None
        ended.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    return ended


def num_different(one: dict[str, Any], other: dict[str, Any]) -> int:
    shared = one.keys() & other.keys()
    return len(one.keys() ^ other.keys()) + sum(not one[key].equal(other[key]) for key in shared)


def test_f19_each_option_of_stackwise_training_changes_something(tmp_path: Path) -> None:
    """`mode: fused` is no blockwise under another name, and both spellings of one thing agree."""
    qlora = {"mode": "layerwise", "qlora_enabled": True, "qlora_rank": 2}
    stored = {"mode": "layerwise", "quantization_type": "nf_fp8"}
    block, fused, again, progressive, simple, enabled, kept, plain = stack_trainings(
        tmp_path,
        {"mode": "blockwise", "block_size": 1, "cache_activations": False},
        {"mode": "fused", "block_size": 1},
        {**qlora, "qlora_progressive_enabled": True},
        {**qlora, "qlora_strategy": "progressive"},
        qlora,
        {**stored, "quantization_enabled": True},
        {**stored, "backbone_quantized": True},
        {"mode": "layerwise"},
    )
    assert num_different(block, fused) > 9
    assert num_different(again, progressive) == 0
    assert num_different(progressive, simple) > 9
    assert num_different(enabled, kept) == 0
    assert num_different(enabled, plain) > 9


@pytest.mark.parametrize(
    ("switch", "other"),
    [
        ("backbone_quantized", {"quantization_enabled": True}),
        ("qlora_progressive_enabled", {"qlora_enabled": True, "qlora_strategy": "progressive"}),
    ],
)
def test_f19_an_explicit_no_is_no_silent_yes(switch: str, other: dict[str, Any]) -> None:
    for value, is_refused in ((False, True), (True, False), (None, False)):
        config = DeploymentConfig(training={"mode": "layerwise", **other, switch: value})
        named = [one for one in config.problems() if f"training.{switch} false" in one]
        assert bool(named) == is_refused
