"""The stacks of real runs: written when they are finished, all of them the model at the end, the
same files after a kill."""

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.files import file_sha256
from infrastructure.features.stackwise.training import observers
from infrastructure.features.stackwise.training.observers import StackFiles
from infrastructure.features.stackwise.training.unified_trainer import UnifiedTrainer
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import deploy, losses
from tests.features.stackwise.training.read_stacks import load_stacks, read_stack
from tests.features.stackwise.training.test_strategy import (
    AT_ONCE,
    LAYERS,
    SEQUENTIAL,
    STEPS,
    config_of,
    train,
    weights_after,
)
from tests.models.architectures import tiny_model
from tests.slow import slow_but

RUNS = {
    **{name: SEQUENTIAL[name] for name in ("progressive", "reconstruct")},
    **{name: AT_ONCE[name] for name in ("stackwise", "rackwise")},
    "trainable": {"mode": "fused", "block_size": 2},
    "once": {"strategy": "progressive", "progressive": {"growth": "once", "init": "copy"}},
    "qlora": {
        "strategy": "progressive",
        "progressive": {"target_stacks": 2, "trunk_strategy": "qlora"},
        "quantization_enabled": True,
        "save_rack": True,
    },
}
TOP_FIRST = ("progressive", "qlora")  # the top trains with the first unit alone


SEEN: list[tuple[int, list[str], torch.Tensor]] = []  # of "trainable", at the end of each phase


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a name in `RUNS`, trained once; for tests that look at it."""
    phase_end = StackFiles.phase_end

    def look(self: StackFiles, state: Any) -> None:
        phase_end(self, state)
        stack = state.position.phase
        record, tensors = read_stack(self.folder, stack)
        assert record.final_step is None
        name = f"model.layers.{2 * stack}.mlp.up_proj.weight"
        files = sorted(path.name for path in self.folder.glob("*.json"))
        SEEN.append((state.step, files, tensors[name]))

    def train_named(name: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            if name == "trainable":
                patch.setattr(StackFiles, "phase_end", look)
            return train(tmp_path_factory.mktemp("whole"), "runs", **RUNS[name])

    return cache(train_named)


def plain_model(run: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(run / "final", output_loading_info=False)


def digests(run: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in (run / "stacks").iterdir()}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model.eval()(torch.arange(20).unsqueeze(0)).logits
    return result


@pytest.mark.parametrize("name", slow_but(["qlora", "rackwise"], RUNS))
def test_the_stacks_of_a_run_are_its_model(name: str, trained: Callable[[str], Path]) -> None:
    run = trained(name)
    final = plain_model(run)
    expected = logits(final)
    with torch.no_grad():
        for parameter in final.parameters():
            parameter.fill_(0.5)
    records = load_stacks(run / "stacks", final)
    assert torch.equal(logits(final), expected)
    assert [record.stack for record in records] == list(range(len(records)))
    assert records[-1].end_layer == records[-1].num_layers == LAYERS
    holds = [["layers"] for _ in records]
    holds[0].append("below")
    for stack in {0, -1} if name in TOP_FIRST else {-1}:  # with whom the top has trained last
        holds[stack].append("above")
    assert [record.holds for record in records] == holds
    assert not [n for s in records for n in read_stack(run / "stacks", s.stack)[1] if "only" in n]
    losses_of_stack = dict(losses(run))
    sequential = name not in AT_ONCE
    for record in records:
        expected_step = STEPS * (record.stack + 1) if sequential else STEPS
        assert (record.step, record.final_step) == (expected_step, max(losses_of_stack))
        assert record.loss == pytest.approx(losses_of_stack[expected_step])


def test_a_finished_stack_is_there_while_the_next_one_trains(
    trained: Callable[[str], Path],
) -> None:
    """Each is written at the end of its phase, as it is then."""
    run = trained("trainable")
    assert [(step, files) for step, files, _ in SEEN] == [
        (STEPS, ["stack_0.json"]),
        (2 * STEPS, ["stack_0.json", "stack_1.json"]),
    ]
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(SEEN[0][2], weights_after(run, STEPS)[name])
    final = load_file(run / "stacks/stack_0.safetensors")[name]
    assert torch.equal(final, weights_after(run, 2 * STEPS)[name])
    assert not torch.equal(final, SEEN[0][2])  # it went on training with the second


def test_time_steps_are_named(tmp_path: Path) -> None:
    masks = {"time_step_masking": True, "num_time_steps": 4}
    config = config_of(tmp_path, strategy="progressive", progressive={"target_stacks": 2}, **masks)
    trainer = TrainerFactory().for_run(config)
    trainer.add_hooks(trainer.strategy.run_parts(trainer).observers(tmp_path))
    trainer.train()
    assert [read_stack(tmp_path / "stacks", s)[0].time_steps for s in range(2)] == [[0], [3]]


@pytest.mark.parametrize(
    ("name", "steps"),
    slow_but(
        [("trainable", [STEPS + 2])],
        [("trainable", [STEPS + 2]), *((name, [STEPS - 2, STEPS + 2]) for name in RUNS)],
    ),
)
def test_a_run_that_is_killed_ends_with_the_same_files(
    name: str, steps: list[int], trained: Callable[[str], Path], tmp_path: Path
) -> None:
    """Killed in the first phase, and in the second; with its stacks and without, as on another
    machine. When phases began is known, too."""
    whole = trained(name)
    expected = digests(whole)
    for step in (step for step in steps if step < len(losses(whole))):
        config = config_of(whole.parents[1], **RUNS[name])
        config.output_dir = str(tmp_path / f"again-{step}")
        stopped = stop_at(config, step)
        if step > STEPS:  # brought to another machine, where there are no stacks
            assert phases_began(stopped) == [0, STEPS]
            for path in [*(stopped / "stacks").iterdir(), stopped / "stackwise.json"]:
                path.unlink()
        went_on, _ = deploy(config)
        assert went_on == stopped
        assert digests(went_on) == expected
        assert phases_began(went_on) == phases_began(whole)


def phases_began(run: Path) -> list[int]:
    return [one["step"] for one in json.loads((run / "stackwise.json").read_text())["began"]]


def stop_at(config: Any, step: int) -> Path:
    """A run that a signal ends after `step` steps."""
    original = StackFiles.step_end

    def stop(self: StackFiles, state: Any) -> None:
        original(self, state)
        if state.step == step:
            state.interrupt("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackFiles, "step_end", stop)
        run, _ = deploy(config)
    newest = CheckpointManager(run / "checkpoints").newest()
    assert load_checkpoint(newest).values["step"] == step
    return run


def test_a_run_of_fewer_steps_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    """With the stack that was in training then."""
    run = train(tmp_path, "runs", mode="blockwise", block_size=2, max_steps=STEPS + 2)
    final = plain_model(run)
    expected = logits(final)
    records = load_stacks(run / "stacks", final)
    assert torch.equal(logits(final), expected)
    losses_of_stack = dict(losses(run))
    assert [record.loss for record in records] == pytest.approx(
        [losses_of_stack[STEPS], losses_of_stack[STEPS + 2]]
    )
    last = STEPS + 2
    assert [(r.step, r.final_step) for r in records] == [(STEPS, last), (None, last)]


def test_no_stacks_where_none_are_wanted(tmp_path: Path) -> None:
    config = config_of(tmp_path, mode="blockwise", block_size=2, save_stacks=False)
    trainer = TrainerFactory().for_run(config)
    parts = trainer.strategy.run_parts(trainer)
    trainer.add_hooks(parts.observers(tmp_path))
    trainer.train()
    parts.save(tmp_path)
    assert (tmp_path / "stackwise.json").is_file()
    assert not (tmp_path / "stacks").exists()


def test_a_disk_that_refuses_costs_the_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(observers, "write_stack", refuse)
    config = config_of(tmp_path, mode="blockwise", block_size=2)
    with caplog.at_level(logging.WARNING):
        run, lines = deploy(config)
    assert (run / "final").is_dir()
    no_space = "error=[Errno 28] No space left on device"
    assert f"stackwise.stack_not_written(index=0, {no_space}" in caplog.text
    assert any("stackwise.saved_stacks_incomplete(folder=" in line for line in lines)


def test_the_rack_is_the_whole_model(trained: Callable[[str], Path]) -> None:
    """A folder that plain transformers reads."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = trained("qlora")
    rack, found = AutoModelForCausalLM.from_pretrained(run / "rack", output_loading_info=True)
    assert not found["unexpected_keys"]
    assert not found["missing_keys"]
    assert torch.equal(logits(rack), logits(plain_model(run)))
    assert AutoTokenizer.from_pretrained(run / "rack")("12").input_ids


def test_the_forecast_counts_what_is_left_beside_the_model(tmp_path: Path) -> None:
    shape = {"mode": "blockwise", "block_size": 2, "cache_activations": True}
    trainer = TrainerFactory().for_run(config_of(tmp_path, **shape, save_rack=True))
    remaining, passing = trainer.strategy.run_parts(trainer).disk_bytes()
    model = trainer.initialize_model()
    assert remaining == 2 * sum(p.nbytes for p in model.parameters())
    assert passing > 0
    config = config_of(tmp_path, **shape, save_stacks=False, cache_dir=str(tmp_path / "cached"))
    trainer = TrainerFactory().for_run(config)
    assert trainer.strategy.run_parts(trainer).disk_bytes() == (0, 0)


@pytest.mark.parametrize("is_list", [False, True])
def test_layers_of_ones_own(is_list: bool, tmp_path: Path) -> None:
    """A model that one has, and a list of layers: with stacks and rack in the output folder."""
    config = TrainingConfig(mode="layerwise", num_epochs=1, save_rack=True, warmup_steps=0)
    if is_list:
        layers: Any = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        head = torch.nn.Linear(8, 4)
        batches = [(torch.randn(6, 8), torch.randint(4, (6,))) for _ in range(4)]
        trainer = UnifiedTrainer(config, output_dir=tmp_path, device="cpu")
        trainer.train_all_layers(batches, layers, head=head)
        files = [load_file(tmp_path / f"stacks/stack_{s}.safetensors") for s in range(3)]
        assert torch.equal(files[2]["layers.2.weight"], layers[2].weight)
        assert torch.equal(files[2]["head.weight"], head.weight)
        rack = load_file(tmp_path / "rack/model.safetensors")
        assert all(torch.equal(rack[name], tensor) for f in files for name, tensor in f.items())
        return
    model: Any = tiny_model("llama")
    rows = [{"input_ids": torch.randint(3, 90, (2, 12))} for _ in range(4)]
    UnifiedTrainer(config, output_dir=tmp_path, device="cpu").train_all_layers(rows, model)
    other = tiny_model("llama")
    load_stacks(tmp_path / "stacks", other)
    assert torch.equal(logits(other), logits(model))
    saved = load_file(tmp_path / "rack/model.safetensors")
    assert torch.equal(saved["lm_head.weight"], model.lm_head.weight)
