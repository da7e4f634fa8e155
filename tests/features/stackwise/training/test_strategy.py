"""Stack-wise training through the deployment: a unit after the other, or all at once."""

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.deployment.export import export_checkpoint
from infrastructure.features.stackwise.training import trunk_output
from infrastructure.features.stackwise.training.quantized_trunk import QUANTIZATIONS, Quantization
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import divide, plan_stacks
from infrastructure.features.stackwise.training.strategy import StackwiseStrategy
from infrastructure.run.directory import RunDirectory
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.core.state import StepOutput, TrainingState
from infrastructure.training.distributed import members
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import ForkedHelper, deploy, losses, small_settings, write_rows
from tests.deployment.test_resuming import StopAfter
from tests.models.architectures import gradients, tiny_model
from tests.slow import slow, slow_but

LAYERS = 4
STEPS = 3  # of an epoch


def config_of(folder: Path, **training: Any) -> DeploymentConfig:
    """A small training of `LAYERS` layers, one epoch of `STEPS` steps in each phase."""
    if not (folder / "rows.jsonl").exists():
        write_rows(folder / "rows.jsonl", 100, 112)
    settings = small_settings(folder, **{"num_epochs": 1, **training})
    settings["model"]["embedded"]["num_layers"] = LAYERS
    return DeploymentConfig(**settings)


def train(folder: Path, name: str, **training: Any) -> Path:
    config = config_of(folder, **training)
    config.output_dir = str(folder / name)
    return deploy(config)[0]


class Records(Observer):
    """Writes what a step has measured, and its phase, as a run writes its metrics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def step_end(self, state: TrainingState) -> None:
        record = {**state.metrics, "step": state.step, "phase": state.position.phase}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


def train_alone(config: DeploymentConfig, folder: Path) -> Path:
    """Train without all that a run does before and after it; its metrics and checkpoints."""
    trainer = TrainerFactory().for_run(config, hooks=[Records(folder)])
    trainer.save_checkpoints_to(folder / "checkpoints")
    trainer.train()
    return folder


def records_of(run: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if "loss" in record]


Trained = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows and what is prepared of them, for all trainings here."""
    return tmp_path_factory.mktemp("stackwise")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Trained:
    """The training of these settings, once; for tests that look at it."""
    runs: dict[str, Path] = {}

    def run_of(*, is_deployed: bool = False, **training: Any) -> Path:
        settings = json.dumps([is_deployed, training], sort_keys=True)
        if settings not in runs:
            name = f"runs-{len(runs)}"
            if is_deployed:
                runs[settings] = train(folder, name, **training)
            else:
                (folder / name).mkdir()
                runs[settings] = train_alone(config_of(folder, **training), folder / name)
        return runs[settings]

    return run_of


def weights_after(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The model of a checkpoint."""
    [path] = [
        path
        for path in CheckpointManager(run / "checkpoints").checkpoints()
        if load_checkpoint(path).values["step"] == step
    ]
    return load_checkpoint(path).tensors["model"]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


SEQUENTIAL: dict[str, dict[str, Any]] = {
    "progressive": {"strategy": "progressive", "progressive": {"target_stacks": 2}},
    "layerwise": {"mode": "layerwise"},
    "blockwise": {"mode": "blockwise", "block_size": 2},
    "fused": {"mode": "fused", "block_size": 2},
    "reconstruct": {"mode": "blockwise", "block_size": 2, "local_loss": "reconstruct"},
}
AT_ONCE: dict[str, dict[str, Any]] = {
    "stackwise": {"strategy": "end_to_end", "end_to_end_scope": "stackwise"},
    "lopt": {
        "strategy": "end_to_end",
        "end_to_end_scope": "stackwise",
        "progressive": {"target_stacks": 2},
        "local_loss": "reconstruct",
        "mixed_precision": "fp32",
    },
    "rackwise": {"strategy": "end_to_end"},
}


BLOCKS = {"mode": "blockwise", "block_size": 2}
FURTHER: dict[str, dict[str, Any]] = {
    "once": {"strategy": "progressive", "progressive": {"growth": "once", "init": "copy"}},
    "cached": {**BLOCKS, "cache_activations": True},
    "quantised": {**BLOCKS, "quantization_enabled": True},
    "qlora": {**BLOCKS, "quantization_enabled": True, "qlora_enabled": True, "qlora_rank": 4},
    "progressive qlora": {
        "mode": "layerwise",
        "qlora_enabled": True,
        "qlora_strategy": "progressive",
        "qlora_dropout": 0.1,
    },
    "quantised new stacks": {
        "strategy": "progressive",
        "progressive": {"target_stacks": 2, "new_stack_precision": "nf_fp8"},
    },
    "new stacks in bf16": {
        "strategy": "progressive",
        "progressive": {"target_stacks": 2, "new_stack_precision": "bf16"},
    },
    "qlora at once": {
        "strategy": "end_to_end",
        "quantization_enabled": True,
        "qlora_enabled": True,
    },
    "masked": {**BLOCKS, "time_step_masking": True, "num_time_steps": 2},
    "masked and cached": {
        **{**BLOCKS, "time_step_masking": True, "num_time_steps": 2, "cache_activations": True},
    },
    "masks of the step": {"strategy": "end_to_end", "time_step_masking": True},
}


@pytest.mark.parametrize("name", slow_but(["progressive", "reconstruct", "fused"], SEQUENTIAL))
def test_a_unit_trains_in_its_phase_and_stays_as_it_is_afterwards(
    name: str, trained: Trained
) -> None:
    """Also the one that is unfrozen last really moves."""
    run = trained(**SEQUENTIAL[name])
    size = 1 if name == "layerwise" else 2
    num_phases = LAYERS // size
    assert len(losses(run)) == num_phases * STEPS
    for phase in range(num_phases):
        before = weights_after(run, phase * STEPS)
        after = weights_after(run, (phase + 1) * STEPS)
        moved = {
            int(key.split("layers.")[1].split(".")[0])
            for key in after
            if "layers." in key and not torch.equal(before[key], after[key])
        }
        first = 0 if name == "fused" else phase * size  # all that lies below trains on
        assert moved == set(range(first, (phase + 1) * size))
        embedding = "model.embed_tokens.weight"
        assert torch.equal(before[embedding], after[embedding]) == (first > 0)


def test_a_unit_learns_to_keep_features_together_with_its_decoder(trained: Trained) -> None:
    run = trained(**SEQUENTIAL["reconstruct"])
    states = [weights_after(run, phase * STEPS) for phase in range(3)]
    decoder = [name for name in states[0] if name.startswith("training_only.0.")]
    assert decoder
    assert [name for name in decoder if torch.equal(states[0][name], states[1][name])] == []
    assert [name for name in decoder if not torch.equal(states[1][name], states[2][name])] == []


@pytest.mark.parametrize("name", slow_but(["lopt"], AT_ONCE))
def test_all_units_train_in_every_step(name: str, trained: Trained) -> None:
    run = trained(**AT_ONCE[name])
    before, after = weights_after(run, 1), weights_after(run, 2)
    still = [key for key in after if torch.equal(before[key], after[key])]
    assert still == []


@slow
def test_layerwise_is_blockwise_of_one(trained: Trained) -> None:
    one = trained(mode="layerwise")
    other = trained(mode="blockwise", block_size=1)
    assert losses(one) == losses(other)


def test_rackwise_is_ordinary_training(trained: Trained) -> None:
    one = trained(strategy="end_to_end", end_to_end_scope="rackwise")
    other = trained(strategy="standard")
    assert losses(one) == losses(other)


def test_one_stack_is_ordinary_training(trained: Trained) -> None:
    one = trained(strategy="progressive", progressive={"target_stacks": 1})
    other = trained(strategy="standard")
    assert losses(one) == losses(other)


QUICK = ["lopt", "once", "qlora", "quantised new stacks", "masked and cached"]


@pytest.mark.parametrize("name", slow_but(QUICK, [*SEQUENTIAL, *AT_ONCE, *FURTHER]))
def test_a_run_that_is_broken_off_comes_to_the_same_end(
    name: str, trained: Trained, tmp_path: Path
) -> None:
    """In the middle of the second phase, and from the checkpoint at its beginning."""
    settings = {**SEQUENTIAL, **AT_ONCE, **FURTHER}[name]
    whole = trained(**settings)
    last = len(losses(whole))
    for step in sorted({STEPS, last - 2} - {last}):
        checkpoint = [
            path
            for path in CheckpointManager(whole / "checkpoints").checkpoints()
            if load_checkpoint(path).values["step"] == step
        ]
        trainer = TrainerFactory().for_run(config_of(tmp_path, **settings))
        again = tmp_path / f"from-{step}"
        trainer.save_checkpoints_to(again / "checkpoints")
        trainer.restore(checkpoint[0])
        state = trainer.train()
        assert state.step == last
        end, model = weights_after(whole, last), weights_after(again, last)
        assert end.keys() == model.keys()
        assert [key for key in end if not same_bits(end[key], model[key])] == []


def test_optimizer_memory_is_that_of_the_unit_that_trains(trained: Trained) -> None:
    run = trained(**PLAIN)
    [path] = CheckpointManager(run / "checkpoints").checkpoints()[-1:]
    values = load_checkpoint(path)
    held = sum(t.numel() for name, t in values.tensors["optimizer"].items() if "exp_avg" in name)
    model = values.tensors["model"]
    top = sum(t.numel() for key, t in model.items() if re.search(r"layers\.[23]\.", key))
    assert held == 2 * top


@pytest.mark.parametrize(
    ("training", "sizes"),
    [
        ({"mode": "layerwise"}, [1] * 7),
        ({"mode": "blockwise", "block_size": 3}, [3, 3, 1]),
        ({"strategy": "progressive", "progressive": {"target_stacks": 3}}, [2, 2, 3]),
        (
            {"strategy": "progressive", "progressive": {"target_stacks": 3, "growth": "once"}},
            [2, 5],
        ),
    ],
)
def test_layers_are_divided(training: dict[str, Any], sizes: list[int]) -> None:
    units = divide(7, TrainingConfig(**training))
    assert [unit.last - unit.first for unit in units] == sizes
    assert [unit.first for unit in units] == [sum(sizes[:index]) for index in range(len(sizes))]


def test_more_stacks_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stackwise\.more_stacks_than_layers.*num_layers=3"):
        divide(3, TrainingConfig(strategy="progressive"))


def strategy_of(**training: Any) -> tuple[StackwiseStrategy, torch.nn.Module]:
    """A strategy for four layers, whose phases have two epochs of ten steps each."""
    strategy = StackwiseStrategy(TrainingConfig(**training))
    model = tiny_model("llama", num_hidden_layers=4)
    strategy.steps_per_epoch = 10
    strategy.prepare_model(model)
    strategy.phases(model, 2)
    return strategy, model


def test_a_run_has_to_reach_its_last_phase() -> None:
    strategy, _ = strategy_of(mode="layerwise")
    strategy.check_length(61)
    fewer = "fewer_epochs=stackwise.fewer_epochs_per_phase(num_epochs=2)"
    numbers = "total_steps=60, phase=layer 4 of 4, first_step=61, steps_before=60"
    with pytest.raises(ValueError, match=re.escape(f"last_phase_not_reached({numbers}, {fewer}")):
        strategy.check_length(60)


@pytest.mark.parametrize("total_steps", [75, 80, 100])
def test_the_schedule_begins_anew_in_each_phase(total_steps: int) -> None:
    """The last phase has whatever steps are left."""
    strategy, _ = strategy_of(mode="layerwise", warmup_steps=3, scheduler_type="linear")
    parameter = torch.nn.Parameter(torch.zeros(1))
    scheduler = strategy.create_scheduler(torch.optim.SGD([parameter], lr=1.0), total_steps)
    each, last = strategy.rate_factor(20), strategy.rate_factor(total_steps - 60)
    wanted = [each(step) for step in range(20)] * 3 + [last(n) for n in range(total_steps - 58)]
    [factor] = scheduler.lr_lambdas
    assert [factor(step) for step in range(total_steps + 2)] == wanted
    growing, _ = strategy_of(strategy="progressive", progressive={"growth": "once"}, warmup_steps=3)
    one = growing.create_scheduler(torch.optim.SGD([parameter], lr=1.0), 40).lr_lambdas[0]
    assert [one(step) for step in range(40)] == [growing.rate_factor(40)(n) for n in range(40)]


def test_measuring_trains_what_the_deepest_phase_trains() -> None:
    strategy, model = strategy_of(mode="blockwise", block_size=3)
    frozen = next(p for name, p in model.named_parameters() if "layers.3." in name)
    frozen.requires_grad_(False)
    before = {name for name, p in model.named_parameters() if p.requires_grad}
    with strategy.measuring(model):
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name in before if "layers.3." in name}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == before


def test_an_evaluation_runs_the_layers_that_have_trained() -> None:
    strategy, model = strategy_of(mode="layerwise")
    ids = torch.arange(5)[None]
    depth = []
    for strategy.entered in (-1, 0, 2, 3):
        called: list[int] = []
        handles = [
            layer.register_forward_hook(lambda *_, index=index, called=called: called.append(index))
            for index, layer in enumerate(strategy.stacks.rack.layers)
        ]
        with strategy.evaluating(), torch.no_grad():
            model(input_ids=ids)
        depth.append(called)
        for handle in handles:
            handle.remove()
    assert depth == [[0, 1, 2, 3], [0], [0, 1, 2], [0, 1, 2, 3]]


def test_masks_of_the_depth_go_from_the_first_bin_to_the_last() -> None:
    config = TrainingConfig(
        strategy="progressive",
        progressive={"target_stacks": 4},
        time_step_masking=True,
        time_step_bins=[1, 3, 5, 9],
    )
    rack = Rack(tiny_model("llama", num_hidden_layers=4))
    assert [phase.time_step for phase in plan_stacks(config, rack, 1).phases] == [1, 3, 5, 9]


# Of one run, whose schedule and losses are looked at.
PLAIN = {**BLOCKS, "warmup_steps": 1, "mixed_precision": "fp32"}


def test_each_phase_warms_up_and_falls_anew(trained: Trained) -> None:
    run = trained(**PLAIN)
    rates = [record["learning_rate"] for record in records_of(run)]
    each = len(rates) // 2
    assert rates[: each - 1] == pytest.approx(rates[each:-1])  # each is of the step after it
    assert rates[0] < rates[1] > rates[each - 1]  # where the next one warms up


@pytest.mark.parametrize("max_steps", slow_but([9], [6, 9, 15]))
def test_a_number_of_steps_alone_is_shared_by_the_phases(max_steps: int, trained: Trained) -> None:
    settings = {"mode": "blockwise", "block_size": 2, "num_epochs": "auto"}
    run = trained(**settings, max_steps=max_steps)
    of_each = max_steps // (2 * STEPS) * STEPS
    assert [record["phase"] for record in records_of(run)] == [0] * of_each + [1] * of_each


def test_a_model_that_grows_in_one_step_has_one_schedule(trained: Trained) -> None:
    run = trained(**FURTHER["once"])
    rates = [record["learning_rate"] for record in records_of(run)]
    highest = rates.index(max(rates))
    assert highest < STEPS
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[STEPS] > 0.3 * max(rates)  # in the middle, where the others begin


CACHED: dict[str, dict[str, Any]] = {
    "packed": {},
    "masked": {"time_step_masking": True, "num_time_steps": 3},
    "masked by the input": {
        "time_step_masking": True,
        "num_time_steps": 2,
        "time_interpretation": "input",
    },
}


ALL_CACHED = [(name, dtype) for name in CACHED for dtype in ("fp32", "bf16")]
QUICK_CACHED = [("packed", "bf16")]


@pytest.mark.parametrize(("name", "dtype"), slow_but(QUICK_CACHED, ALL_CACHED))
def test_cached_is_recomputed(name: str, dtype: str, trained: Trained) -> None:
    tolerance = {"fp32": 1e-5, "bf16": 1e-2}[dtype]
    shape = {"mode": "blockwise", "block_size": 2, "num_epochs": 2, "cache_activations": True}
    settings = {**shape, **CACHED[name], "mixed_precision": "fp32"}
    kept = trained(**settings, cache_dtype=dtype, is_deployed=True)
    computed = trained(**settings, cache_size=0)
    [one, other] = [[loss for _, loss in losses(run)] for run in (kept, computed)]
    assert one == pytest.approx(other, rel=tolerance)
    assert list((kept / "activations").iterdir()) == []  # it is over


@pytest.mark.parametrize("mutant", slow_but([None], [None, "no trunk hash"]))
def test_what_another_training_left_is_not_believed(
    mutant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same data, with another trunk, in the same folder."""
    if mutant is not None:
        monkeypatch.setattr(trunk_output, "trunk_hash", lambda named: "the same")
    shape = {**BLOCKS, "cache_activations": True, "cache_dtype": "fp32", "mixed_precision": "fp32"}
    shape["cache_dir"] = str(tmp_path / "kept")
    first = config_of(tmp_path, **shape, learning_rate=3e-3)
    left = TrainerFactory().for_run(first, hooks=[StopAfter(STEPS + 2)])
    left.train()
    assert any((tmp_path / "kept").rglob("*.page"))
    runs = []
    for cache in ("kept", "another"):
        shape["cache_dir"] = str(tmp_path / cache)
        run = tmp_path / f"with {cache}"
        run.mkdir()
        runs.append(train_alone(config_of(tmp_path, **shape, learning_rate=1e-3), run))
    there, alone = runs
    assert (losses(there) == losses(alone)) == (mutant is None)


def test_a_quantised_trunk_is_smaller_and_comes_back(trained: Trained) -> None:
    run = trained(**PLAIN, quantization_enabled=True, is_deployed=True)
    stored = weights_after(run, 2 * STEPS)
    fp8 = [t for t in stored.values() if t.dtype == torch.float8_e4m3fn]
    assert sum(t.numel() for t in fp8) > 0
    [one, other] = [[loss for _, loss in losses(run)] for run in (run, trained(**PLAIN))]
    assert one[:STEPS] == other[:STEPS]
    assert one != other
    assert one == pytest.approx(other, rel=0.05)


def test_low_rank_matrices_of_the_trunk_train_with_each_unit(trained: Trained) -> None:
    run = trained(**FURTHER["qlora"])
    before, after = weights_after(run, STEPS), weights_after(run, 2 * STEPS)
    moved = {key for key in after if key in before and not torch.equal(before[key], after[key])}
    beside = {key for key in moved if "stack_adapters" in key}
    assert {key.split("layers.")[1][0] for key in beside} == {"0", "1"}
    assert {key.split("layers.")[1][0] for key in moved - beside} == {"2", "3"}


@pytest.mark.parametrize(
    "name",
    slow_but(["progressive qlora"], ["qlora", "progressive qlora", "qlora at once"]),
)
def test_what_low_rank_matrices_learnt_is_in_the_finished_model(
    name: str, trained: Trained, tmp_path: Path
) -> None:
    """A plain model of transformers, with the held-out loss of the training's end."""
    from transformers import AutoModelForCausalLM

    run = trained(**FURTHER[name], mixed_precision="fp32", is_deployed=True)
    model = AutoModelForCausalLM.from_pretrained(run / "final")
    names = {key for key, _ in model.named_parameters()}
    assert not any("stack_adapters" in key or "quantized" in key for key in names)
    record = json.loads((run / "summary.json").read_text())
    trainer = TrainerFactory().for_run(config_of(tmp_path, mixed_precision="fp32"))
    trainer.initialize_model().load_state_dict(model.state_dict())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(record["after"]["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("name", slow_but(["quantised"], ["qlora", "quantised", "lopt", "masked"]))
def test_a_checkpoint_from_the_middle_is_exported_as_a_plain_model(
    name: str, trained: Trained, tmp_path: Path
) -> None:
    """With the held-out loss that it has in the training."""
    from transformers import AutoModelForCausalLM

    settings = {**AT_ONCE, **FURTHER}[name] | {"mixed_precision": "fp32", "warmup_steps": 1}
    run = trained(**settings, is_deployed=True)
    step = len(losses(run)) - 2
    [checkpoint] = [
        path
        for path in CheckpointManager(run / "checkpoints").checkpoints()
        if load_checkpoint(path).values["step"] == step
    ]
    export_checkpoint(RunDirectory(run), checkpoint, tmp_path / "exported")
    model, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "exported", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    trainer = TrainerFactory().for_run(config_of(tmp_path, **settings))
    trainer.restore(checkpoint)
    expected = trainer.evaluate()["eval_loss"]
    trainer.strategy.close(is_over=True)
    trainer.model.load_state_dict(model.state_dict())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_learning_rate_of_their_own(tmp_path: Path) -> None:
    config = config_of(tmp_path, **FURTHER["qlora"], qlora_lr=0.123)
    groups = TrainerFactory().for_run(config).prepare().loop.optimizer_step.optimizer.param_groups
    rates = {group["initial_lr"] for group in groups}
    assert len(rates) == 2
    assert 0.123 in rates


def test_ranks_of_some_stacks(tmp_path: Path) -> None:
    settings = {"qlora_strategy": "variable", "qlora_ranks": {0: 2}, "qlora_rank": 4}
    config = config_of(tmp_path, mode="layerwise", qlora_enabled=True, **settings)
    model = TrainerFactory().for_run(config).initialize_model()
    ranks = {
        name.split("layers.")[1][0]: len(p)
        for name, p in model.named_parameters()
        if "lora_A" in name
    }
    assert ranks == {"0": 2, "1": 4, "2": 4}  # the last one is never part of a trunk


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "qlora trunk with a cache": (
        {**BLOCKS, "qlora_enabled": True, "cache_activations": True},
        r"stackwise\.cache_with_qlora\(",
    ),
    "standard with a mode": (
        {"strategy": "standard", "mode": "layerwise"},
        r"stackwise\.mode_with_strategy\(mode=layerwise, strategy=standard\)",
    ),
    "nothing would train": (
        {"strategy": "end_to_end", "quantization_enabled": True},
        r"stackwise\.quantization_freezes_everything",
    ),
    "quantised and training": (
        {"mode": "fused", "quantization_enabled": True},
        r"stackwise\.quantized_layers_keep_training",
    ),
    "block size without blocks": (
        {"mode": "layerwise", "block_size": 2},
        r"setting=training\.block_size=2, .*stackwise\.unused_mode_has_no_blocks",
    ),
    "masks that are off": (
        {**BLOCKS, "num_time_steps": 3},
        r"setting=training\.num_time_steps=3, .*stackwise\.unused_masking_is_off",
    ),
    "compiled": (
        {**BLOCKS, "compile_mode": "default"},
        r"stackwise\.stacks_with_compile\(",
    ),
    "early end": (
        {**BLOCKS, "early_stopping_patience": 2},
        r"stackwise\.stacks_with_early_stopping\(",
    ),
    "one loss": (
        {"strategy": "end_to_end", "local_loss": "reconstruct"},
        r"stackwise\.reconstruct_with_one_loss",
    ),
    "an end before the last unit": (
        {**BLOCKS, "max_steps": STEPS},
        r"stackwise\.last_phase_not_reached\(total_steps=3, phase=layers 3 to 4 of 4, "
        r"first_step=4, steps_before=3, ",
    ),
    "too many stacks": (
        {"strategy": "progressive", "progressive": {"target_stacks": 9}},
        r"stackwise\.more_stacks_than_layers\(wanted=9, num_layers=4\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_before_a_run_begins(name: str, tmp_path: Path) -> None:
    settings, code = REFUSED[name]
    with pytest.raises(ValueError, match=code):
        train(tmp_path, "runs", **settings)
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").glob("*/run.json")) == []


@pytest.mark.parametrize("name", slow_but(["lopt"], ["qlora", "masks of the step", "lopt"]))
def test_two_processes_train_what_one_does(
    name: str, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit moves in its phase there, too."""
    monkeypatch.setattr(members, "HelperProcess", ForkedHelper)
    settings = {**SEQUENTIAL, **AT_ONCE, **FURTHER}[name] | {"mixed_precision": "fp32"}
    alone = trained(**settings)
    config = config_of(tmp_path, **settings)
    config.num_processes, config.output_dir = 2, str(tmp_path / "two")
    two = deploy(config)[0]
    [one, other] = [[loss for _, loss in losses(run)] for run in (alone, two)]
    assert other == pytest.approx(one, rel=1e-3)
    last = len(one)
    expected, found = weights_after(alone, last), weights_after(two, last)
    first = weights_after(two, 0)
    moved = {key for key in found if key in first and not same_bits(first[key], found[key])}
    assert moved == {
        key for key in expected if key in first and not same_bits(first[key], expected[key])
    }


def test_a_block_larger_than_the_model_is_noted() -> None:
    def notes(**training: Any) -> list[str]:
        strategy = StackwiseStrategy(TrainingConfig(mode="blockwise", **training))
        strategy.prepare_model(tiny_model("llama"))
        return strategy.notes()

    assert notes() == notes(block_size=1) == []
    [note] = notes(block_size=99)
    assert "stackwise.block_larger_than_model" in note


@pytest.mark.parametrize("is_sequential", [True, False])
def test_how_layers_are_stored_is_tried_out_before_the_first_step(is_sequential: bool) -> None:
    """On a matrix that has values, of each form that any phase stores layers in."""
    names = iter(("tried", "refused"))  # what was found out of a name is not found out again

    def prepare(store: Any) -> None:
        name = f"{next(names)} {is_sequential}"
        settings: dict[str, Any] = {"strategy": "end_to_end"}
        if is_sequential:
            settings = {"mode": "layerwise"}
        with QUANTIZATIONS.registered(name, Quantization(store, lambda stored, _: stored["all"])):
            config = TrainingConfig(
                quantization_enabled=True,
                quantization_type=name,
                qlora_enabled=not is_sequential,
                **settings,
            )
            StackwiseStrategy(config).prepare_model(tiny_model("llama"))

    def scaled(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        assert tuple(weight.shape) == (1, 64)
        return {"all": weight / weight.abs().amax().clamp(min=1)}

    def refused(weight: torch.Tensor) -> dict[str, torch.Tensor]:
        raise ValueError("only on another machine")

    prepare(scaled)
    with pytest.raises(ValueError, match="only on another machine"):
        prepare(refused)


@pytest.mark.parametrize(("shape", "is_refused"), [((4, 64), 0), ((2, 4, 63), 0), ((2, 4, 64), 1)])
def test_experts_in_one_tensor_cannot_be_quantised(
    shape: tuple[int, ...], is_refused: bool
) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    model.model.layers[2].weights = torch.nn.Parameter(torch.ones(shape))
    config = TrainingConfig(mode="layerwise", quantization_enabled=True, quantization_type="fp16")
    with pytest.raises(ValueError, match="experts_cannot") if is_refused else nullcontext():
        StackwiseStrategy(config).prepare_model(model)


@pytest.mark.parametrize("local_loss", ["head", "reconstruct"])
def test_a_batch_without_a_total_is_divided_by_its_own_items(local_loss: str) -> None:
    """As the specification calls a step: with a plain batch."""

    def loss_of(model: torch.nn.Module, batch: dict[str, Any]) -> StepOutput:
        logits = model(input_ids=batch["inputs"]).logits
        return StepOutput(logits.square().sum(), batch["inputs"].numel())

    strategy, model = strategy_of(mode="layerwise", local_loss=local_loss)
    strategy.compute_loss = loss_of
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy.enter_phase(model, optimizer, 0)
    ids = torch.arange(3, 11).reshape(2, 4)
    batch = {"inputs": ids, "target_positions": torch.arange(8)}
    found = []
    for given in ({}, {"total_items": 8}, {"total_items": 16}):
        strategy.train_step(model, batch | given, optimizer, None, None, update_gradients=False)
        found.append(gradients(model))
    assert found[0]
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)
        torch.testing.assert_close(2 * found[2][name], gradient)
