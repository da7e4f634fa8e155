"""F14 to F23: options, extensions of a run, and sentences that fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import parse
from infrastructure.commands.settings import configure
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import SAME
from infrastructure.config.field_help import plain
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sources.flags import as_flag
from infrastructure.config.sources.load import load_config
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.one_call import resume_run
from infrastructure.deployment.resuming import find_to_resume
from infrastructure.features.stackwise.config import ProgressiveConfig, StackwiseFields
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import deploy, losses, small_config, small_settings
from tests.features.quantum.training.quantum_runs import quantum_trainer, records
from tests.slow import slow_but
from tests.training.methods.method_runs import configuration, in_fork, run_folder

ROOT = Path(__file__).parents[2]


def test_f14_pytest_runs_a_notebook_of_a_clone(pytestconfig: pytest.Config) -> None:
    """The tests' own settings leave the plugin alone that the page of the notebooks names."""
    assert pytestconfig.pluginmanager.hasplugin("nbmake")
    assert "--nbmake" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    "problem", slow_but(["data_selection"], ["data_selection", "block_selection"])
)
def test_f15_quantum_steps_that_a_frequency_requests_are_made(
    problem: str, saved_llama: Path, tmp_path: Path
) -> None:
    """A step costs seconds and a training step milliseconds here, so each bound would skip it."""

    def outcomes(frequency: int | None, **quantum: Any) -> list[object]:
        trainer = quantum_trainer(
            saved_llama,
            tmp_path,
            quantum={"problem": problem, **quantum},
            optimization_frequency=frequency,
        )
        trainer.train()
        return [record["outcome"] for record in records(trainer)]

    default = {"max_overhead_percent": "auto"}
    requested = outcomes(3, **default)
    assert set(requested) == {"answered"}
    assert len(requested) >= 2
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
        assert "quantum.selected_of_examined" in record["chosen"]


def stack_trainings(
    folder: Path, *runs: dict[str, Any], model: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The weights that each stack-wise training ends with; of three layers, or of `model`."""
    ended = []
    for training in runs:
        settings = small_settings(folder, num_epochs=1, **{"batch_size": 8, **training})
        settings["model"]["embedded"]["num_layers"] = 3
        settings["model"] = model or settings["model"]
        trainer = TrainerFactory().for_run(DeploymentConfig(**settings))
        trainer.train()
        assert trainer.model is not None
        ended.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    return ended


@pytest.fixture(scope="module")
def weights_after(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Train once each configuration that several tests look at."""
    ended: dict[str, dict[str, Any]] = {}

    def weights(training: dict[str, Any]) -> dict[str, Any]:
        key = repr(training)
        if key not in ended:
            [ended[key]] = stack_trainings(tmp_path_factory.mktemp("stacks"), training)
        return ended[key]

    return weights


def num_different(one: dict[str, Any], other: dict[str, Any]) -> int:
    shared = one.keys() & other.keys()
    return len(one.keys() ^ other.keys()) + sum(not one[key].equal(other[key]) for key in shared)


LAYERWISE = {"mode": "layerwise"}
GROWN = {"strategy": "progressive", "progressive": {"target_stacks": 2}}
QLORA = {**LAYERWISE, "qlora_enabled": True, "qlora_rank": 2}
MASKED = {**LAYERWISE, "time_step_masking": True}
# Of each choice: what it is given with, and itself. What only says how and where the same numbers
# are kept is left out.
CHOICES: dict[str, tuple[dict[str, Any], object]] = {
    "block_size": ({"mode": "blockwise", "block_size": 1}, 2),
    "local_loss": (LAYERWISE, "reconstruct"),
    "reconstruct_weight": ({**LAYERWISE, "local_loss": "reconstruct"}, 3.0),
    "cache_dtype": ({**LAYERWISE, "cache_activations": True}, "fp32"),
    "end_to_end_scope": (
        {"strategy": "end_to_end", "progressive": {"target_stacks": 3}},
        "stackwise",
    ),
    "progressive.target_stacks": (GROWN, 3),
    "progressive.trunk_strategy": (GROWN, "qlora"),
    "progressive.new_stack_precision": (GROWN, "nf_fp8"),
    "progressive.growth": (GROWN, "once"),
    "progressive.init": (GROWN, "copy"),
    "time_step_masking": (LAYERWISE, True),
    "num_time_steps": (MASKED, 4),
    "time_step_bins": (MASKED, [0, 2]),
    "time_step_mask_fractions": (MASKED, {0: 0.4, 9: 0.6}),
    "time_interpretation": (MASKED, "input"),
    "corruption": (MASKED, "uniform"),
    "mask_weighting": (MASKED, "none"),
    "quantization_enabled": (LAYERWISE, True),
    "quantization_type": ({**LAYERWISE, "quantization_enabled": True}, "fp16"),
    "backbone_quantized": (LAYERWISE, True),
    "qlora_enabled": (LAYERWISE, True),
    "qlora_rank": (QLORA, 3),
    "qlora_alpha": (QLORA, 5),
    "qlora_dropout": (QLORA, 0.4),
    "qlora_lr": (QLORA, 0.05),
    "qlora_progressive_enabled": (QLORA, True),
    "qlora_strategy": (QLORA, "progressive"),
    "qlora_ranks": ({**QLORA, "qlora_strategy": "variable"}, {0: 3}),
}
KEEPING = {
    *("cache_activations", "cache_size", "cache_mode", "cache_storage", "store_all_time_steps"),
    *("time_step_cache_size", "save_stacks", "save_rack", "cache_dir", "mode"),
    "adapters_full_precision",  # of models that are held in 16 bits: below
}


def test_f19_no_choice_of_stackwise_training_is_left_out_here() -> None:
    fields = {*StackwiseFields.model_fields} - {"progressive"}
    fields |= {f"progressive.{name}" for name in ProgressiveConfig.model_fields}
    assert {*CHOICES} | KEEPING == fields


def test_f19_matrices_in_full_precision_differ_where_the_model_is_in_16_bits(
    saved_llama: Path, tmp_path: Path
) -> None:
    model = {"name": str(saved_llama), "dtype": "bf16"}
    kept, rounded = stack_trainings(
        tmp_path, QLORA, {**QLORA, "adapters_full_precision": False}, model=model
    )
    assert num_different(kept, rounded) > 0


@pytest.mark.parametrize("name", CHOICES)
def test_f19_a_choice_changes_what_is_trained(
    name: str, weights_after: Callable[..., dict[str, Any]]
) -> None:
    given, value = CHOICES[name]
    section, _, field = name.rpartition(".")
    chosen = {**given, field: value}
    if section:
        chosen = {**given, section: {**given.get(section, {}), field: value}}
    assert num_different(weights_after(given), weights_after(chosen)) > 0


def test_f19_each_option_of_stackwise_training_changes_something(
    tmp_path: Path, weights_after: Callable[..., dict[str, Any]]
) -> None:
    """`mode: fused` is no blockwise under another name, and both spellings of one thing agree."""
    block, fused = stack_trainings(
        tmp_path,
        {"mode": "blockwise", "block_size": 1, "cache_activations": False},
        {"mode": "fused", "block_size": 1},
    )
    assert num_different(block, fused) > 9
    for one, other in (
        ({**QLORA, "qlora_progressive_enabled": True}, {**QLORA, "qlora_strategy": "progressive"}),
        ({**LAYERWISE, "quantization_enabled": True}, {**LAYERWISE, "backbone_quantized": True}),
    ):
        assert num_different(weights_after(one), weights_after(other)) == 0


@pytest.mark.parametrize(
    ("switch", "code", "other"),
    [
        (
            "backbone_quantized",
            "stackwise.backbone_both_quantized_and_not",
            {"quantization_enabled": True},
        ),
        (
            "qlora_progressive_enabled",
            "stackwise.progressive_qlora_disabled",
            {"qlora_enabled": True, "qlora_strategy": "progressive"},
        ),
    ],
)
def test_f19_an_explicit_no_is_no_silent_yes(switch: str, code: str, other: dict[str, Any]) -> None:
    for value, is_refused in ((False, True), (True, False), (None, False)):
        config = DeploymentConfig(training={"mode": "layerwise", **other, switch: value})
        named = [one for one in config.problems() if code in one]
        assert bool(named) == is_refused


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


EPOCHS = ({"num_epochs": 1, "max_steps": None}, {"num_epochs": 2}, "num_epochs")


@pytest.mark.parametrize(
    ("before", "after", "accepted"),
    slow_but([EPOCHS], [({"max_steps": 4}, {"max_steps": 7}, "max_steps"), EPOCHS]),
)
def test_f21_a_longer_training_is_not_refused_for_what_follows_from_its_length(
    before: dict[str, Any], after: dict[str, Any], accepted: str, tmp_path: Path, saved_llama: Path
) -> None:
    """Nobody gave `warmup_steps`: its default is fitted to the length, and no change of its own."""
    settings = configuration("dpo", tmp_path, saved_llama, training={**before, "warmup_steps": 50})

    def extended() -> None:
        TrainingDeployment(settings, say=lambda line: None).run()
        run = run_folder(settings)
        steps = len(losses(run))
        (key, value), *_ = after.items()
        change = GivenValue(f"training.{key}", value, Source(Layer.FLAG, key))
        chosen = find_to_resume(run.name, str(run.parent), [change], [accepted], print)
        resume_run(chosen, [accepted], print)
        assert len(losses(run)) > steps

    assert in_fork(extended) == 0


def test_f20_a_change_without_a_step_left_is_named_and_not_recorded(tmp_path: Path) -> None:
    config = small_config(tmp_path, num_epochs=1)
    run, _ = deploy(config)
    trained = model_bytes(run / "final")
    lines: list[str] = []
    changes = [
        GivenValue(f"training.{key}", value, Source(Layer.FLAG, key))
        for key, value in (("learning_rate", 1e-4), ("num_epochs", 1))
    ]
    chosen = find_to_resume(run.name, str(run.parent), changes, ["learning_rate"], print)
    resume_run(chosen, ["learning_rate"], lines.append)
    assert any("deployment.accepted_change_without_effect" in line for line in lines)
    assert model_bytes(run / "final") == trained
    assert not json.loads((run / "summary.json").read_text()).get("history")
    again = find_to_resume(run.name, str(run.parent), [], [], print)
    assert again.config.training.learning_rate == config.training.learning_rate


@pytest.mark.parametrize("training", [{}, {"batch_size": "auto"}])
def test_f22_a_limit_that_was_set_is_named(training: dict[str, Any], tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **training)
    with pytest.raises(ValueError, match=r"optimization\.raise_cpu_limit\(limit=50MB\)") as raised:
        deploy(DeploymentConfig(**settings, memory={"cpu_memory_limit": "50MB"}))
    assert "machine" not in str(raised.value)
    assert "0.0 GiB" not in str(raised.value)


def test_f22_a_limit_above_what_the_machine_has_is_not_named() -> None:
    cpu = torch.device("cpu")
    assert "machine" in MemoryBudget(cpu_limit="900000GB").way_out(cpu)
    assert "machine" in MemoryBudget().way_out(cpu)
    assert "50MB" in MemoryBudget(cpu_limit="50MB").way_out(cpu)


@pytest.mark.parametrize("name", [name for name in SAME if "=" in SAME[name][-1]])
def test_f23_what_a_refusal_advises_is_taken(name: str, tmp_path: Path) -> None:
    """On a command line with DATA before it, and in a file."""
    expected = {setting.partition("=")[0]: setting.partition("=")[2] for setting in SAME[name]}
    parser = create_parser()
    flags = " ".join(as_flag(key, value) for key, value in expected.items())
    options = parse(parser, ["train", "rows.jsonl", *flags.split()])
    assert options.data == "rows.jsonl"
    file = tmp_path / "settings.yaml"
    file.write_text("\n".join(f"{key}: {value or 'true'}" for key, value in expected.items()))
    for config in (configure(options), load_config(file, environment={})):
        for key, value in expected.items():
            assert str(plain(config.value(key))).lower() == (value or "true")


def test_f23_qlora_as_other_tools_write_it_gets_what_it_is_here(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("qlora: true\nlora_r: 8\n")
    with pytest.raises(ValueError, match=r"called_here\(settings=model\.lora_config and "):
        load_config(file, environment={})


def test_f23_the_best_model_at_the_end_is_not_promised_by_a_flag_that_keeps_it() -> None:
    for word in ("--load-best-model-at-end", "--load_best_model_at_end"):
        with pytest.raises(ValueError, match=r"config\.best_is_kept"):
            parse(create_parser(), ["train", "rows.jsonl", word, "true"])


@pytest.mark.parametrize("flag", ["--lora", "--lora-use-dora", "--no-lora", "--new-run"])
@pytest.mark.parametrize("value", ["true", "False"])
def test_f23_a_switch_with_a_value_is_named_and_not_data(flag: str, value: str) -> None:
    for words in (["train", "rows.jsonl", flag, value], ["train", flag, value, "rows.jsonl"]):
        refused = rf"^commands\.switch_takes_no_value\(flag={flag}, value={value}, "
        with pytest.raises(ValueError, match=refused):
            parse(create_parser(), words)
    with pytest.raises(ValueError, match=rf"commands\.takes_no_value\(value='{value}'\)"):
        parse(create_parser(), ["train", "rows.jsonl", f"{flag}={value}"])
    options = parse(create_parser(), ["train", flag, "rows.jsonl"])
    assert options.data == "rows.jsonl"
