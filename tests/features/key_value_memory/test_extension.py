"""Trainings of a model with a memory: what is stored when, killed and continued, used again."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.key_value_memory import extension
from infrastructure.features.key_value_memory.checks import problems
from infrastructure.features.key_value_memory.extension import KeyValueMemoryExtension
from infrastructure.features.key_value_memory.memory import NO_ROW, KeyValueMemory
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.models.added_modules import added_modules
from infrastructure.training.core.state import SkippedBatch, TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from tests.features.quantum.training.quantum_runs import StopAt
from tests.slow import slow_but
from tests.training.seeing_models import save_llava, write_colours
from tests.training.small_runs import write_rows

Weights = dict[str, torch.Tensor]


def trainer_of(
    model: Path, folder: Path, *, lora: bool = False, hooks: Any = (), **training: Any
) -> EnhancedTrainer:
    """Of six steps of four rows, two of which come again."""
    data = folder / "rows.jsonl"
    folder.mkdir(exist_ok=True)
    values = {"batch_size": 4, "max_steps": 6, "learning_rate": 1e-3, "warmup_steps": 1}
    values |= {"metrics_sinks": [], "checkpoint_frequency": 1, "keep_checkpoints": 9}
    values |= {"enabled_extensions": ["memory"]}
    if "memory" in values["enabled_extensions"]:
        values["memory"] = {"slots": 5, "heads": 2, "width": 24, "store": 30}
    return EnhancedTrainer(
        ModelConfig(name=str(model), lora_config=LoraConfig(r=2) if lora else None),
        TrainingConfig(**{**values, **training}),
        DataConfig(
            path=str(data if data.exists() else write_rows(folder, 16)),
            max_length=128,
            num_workers=0,
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        sections={"quantum": QuantumConfig(max_overhead_percent=1e6, max_qubits=8)},
        checkpoint_directory=folder / "checkpoints",
        hooks=hooks,
    )


def state_of(trainer: EnhancedTrainer) -> Weights:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def memory_of(trainer: EnhancedTrainer) -> KeyValueMemory:
    found = added_modules(trainer.initialize_model())["memory"]
    assert isinstance(found, KeyValueMemory)
    return found


KINDS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "in pieces": {"gradient_accumulation": 2, "batch_size": 2, "gradient_checkpointing": True},
    "with quantum": {"enabled_extensions": ["quantum", "memory"], "optimization_frequency": 2},
}


@pytest.mark.parametrize("kind", slow_but(["in pieces"], KINDS))
@pytest.mark.parametrize("lora", slow_but([True], [False, True]))
def test_a_training_that_was_broken_off_ends_with_the_same_bits(
    saved_llama: Path, tmp_path: Path, kind: str, lora: bool
) -> None:
    training = KINDS[kind]
    whole = trainer_of(saved_llama, tmp_path / "whole", lora=lora, **training)
    began = memory_of(whole).query.weight.clone()
    whole.train()
    memory = memory_of(whole)
    assert memory.gate.count_nonzero() > 0
    assert not torch.equal(memory.query.weight, began)
    assert int(memory.num_stored) >= 30
    assert (memory.store_rows != NO_ROW).all()
    trainer_of(saved_llama, tmp_path / "killed", lora=lora, hooks=(StopAt(3),), **training).train()
    again = trainer_of(saved_llama, tmp_path / "killed", lora=lora, **training)
    assert again.checkpoints is not None
    again.restore(again.checkpoints.newest())
    again.train()
    assert same(state_of(whole), state_of(again))


def test_however_a_batch_is_split_it_stores_and_learns_the_same(
    saved_llama: Path, tmp_path: Path
) -> None:
    whole = {"mixed_precision": "fp32"}
    packed = trainer_of(saved_llama, tmp_path, **whole)
    padded = trainer_of(saved_llama, tmp_path, batch_size=1, gradient_accumulation=4, **whole)
    padded.data_config.packing = False
    memories = []
    for trainer in (packed, padded):
        trainer.train()
        memories.append(memory_of(trainer))
    for name in ("store_tokens", "store_rows", "num_stored"):
        assert torch.equal(*(getattr(memory, name) for memory in memories))
    assert torch.allclose(memories[0].gate, memories[1].gate, atol=1e-5)


def test_a_step_that_ran_out_of_memory_is_stored_once(saved_llama: Path, tmp_path: Path) -> None:
    pieces = {"batch_size": 2, "gradient_accumulation": 2, "max_steps": 1}
    plain, short = (trainer_of(saved_llama, tmp_path, **pieces) for _ in range(2))
    plain.train()
    short.prepare()
    compute, calls = short.adapter.compute_loss, iter(range(99))

    def once_too_much(*given: Any) -> Any:
        if next(calls) == 1:  # the second piece
            raise torch.OutOfMemoryError("out of memory")
        return compute(*given)

    short.strategy.compute_loss = once_too_much
    short.train()
    assert [one["kind"] for one in short.state.recoveries] == ["out_of_memory"]
    assert torch.equal(memory_of(short).num_stored, memory_of(plain).num_stored)
    assert torch.equal(memory_of(short).store_rows, memory_of(plain).store_rows)


class Poison(Observer):
    """Makes all that the model sees of one step's batch, from 0, no numbers; or passes it over from
    the beginning."""

    def __init__(self, step: int, passed_over: SkippedBatch | None = None) -> None:
        self.step, self.passed_over = step, passed_over
        self.is_here, self.stored = False, False

    def train_start(self, state: TrainingState) -> None:
        if self.passed_over is not None:
            state.skipped = [self.passed_over]

        def spoil(_part: Any, _given: Any, output: torch.Tensor) -> torch.Tensor | None:
            return output * float("nan") if self.is_here else None

        state.model.get_input_embeddings().register_forward_hook(spoil)  # type: ignore[operator]

    def step_start(self, state: TrainingState) -> None:
        self.is_here = state.step == self.step

    def step_end(self, state: TrainingState) -> None:
        self.is_here = False
        for memory in added_modules(state.model).values():
            self.stored |= bool(memory.get_buffer("store_keys").isnan().any())


@pytest.mark.parametrize(
    ("lora", "log_frequency"), slow_but([(True, 3)], [(True, 3), (False, 3), (True, 1)])
)
def test_a_bad_loss_takes_its_weights_and_its_store_back(
    saved_llama: Path, tmp_path: Path, lora: bool, log_frequency: int
) -> None:
    """As if the bad batch had been passed over from the beginning. The second step's is stored, and
    one step after it, before the losses are read."""
    settings: dict[str, Any] = {"lora": lora, "log_frequency": log_frequency}
    settings |= {"checkpoint_frequency": 4, "mixed_precision": "fp32"}
    poison = Poison(1)
    poisoned = trainer_of(saved_llama, tmp_path / "poisoned", hooks=[poison], **settings)
    poisoned.train()
    assert poison.stored == (log_frequency > 1)
    (skipped,) = poisoned.state.skipped
    assert skipped.step == 2
    untouched = Poison(-1, skipped)
    reference = trainer_of(saved_llama, tmp_path / "reference", hooks=[untouched], **settings)
    reference.train()
    assert not reference.state.recoveries
    assert torch.isfinite(memory_of(poisoned).store_keys).all()
    assert same(state_of(poisoned), state_of(reference))


@pytest.mark.parametrize(
    ("num_layers", "hidden", "given", "layer", "width"),
    [
        *((1, 64, {}, 0, 64), (2, 128, {}, 0, 128), (3, 129, {}, 1, 128), (6, 512, {}, 2, 128)),
        (6, 512, {"layer": 5, "width": 256}, 5, 256),
    ],
)
def test_it_stands_in_the_middle_and_is_as_wide_as_the_model(
    num_layers: int,
    hidden: int,
    given: dict[str, int],
    layer: int,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extension, "decoder_layers", lambda model: [None] * num_layers)
    monkeypatch.setattr(extension, "hidden_size", lambda model: hidden)
    trainer = SimpleNamespace(training_config=TrainingConfig(memory=given))
    made = KeyValueMemoryExtension(trainer)
    assert made._wanted(torch.nn.Linear(1, 1)) == {
        **{"layer": layer, "slots": 64, "heads": 2, "width": width, "store": 1024}
    }


def test_only_one_process_may_fill_it() -> None:
    def refused(enabled: list[str], num_processes: object) -> list[str]:
        training = {"enabled_extensions": enabled}
        config = DeploymentConfig(model_name="a/b", training=training, num_processes=num_processes)
        return [text.partition("(")[0] for text in problems(config)]

    assert [refused(["memory"], count) for count in (1, "auto", 2)] == [
        *([], [], ["config.added_weights_on_processes"])
    ]
    assert refused([], 2) == []


def test_its_weights_have_a_rate_of_their_own(saved_llama: Path, tmp_path: Path) -> None:
    trainer = trainer_of(saved_llama, tmp_path, extension_learning_rate=0.02)
    added = {id(p) for p in memory_of(trainer).parameters()}
    groups = trainer.prepare().loop.optimizer_step.optimizer.param_groups
    for group in groups:
        own = {id(p) in added for p in group["params"]}
        assert own == {group["initial_lr"] == 0.02}
        assert group["weight_decay"] == 0.01 * (group["params"][0].ndim > 1)
    assert groups[0]["initial_lr"] == 1e-3
    usual = trainer_of(saved_llama, tmp_path, learning_rate=1e-5)
    step = usual.prepare().loop.optimizer_step
    assert step.optimizer.param_groups[-1]["initial_lr"] == 1e-3


def test_rows_with_pictures_are_stored_as_rows(tmp_path: Path) -> None:
    """The decoder of a model that sees is given embeddings, which say nothing of rows."""
    write_colours(tmp_path, 8).rename(tmp_path / "rows.jsonl")
    trainer = trainer_of(save_llava(tmp_path / "llava"), tmp_path, max_steps=2)
    trainer.train()
    memory = memory_of(trainer)
    assert 0 < int(memory.num_stored) <= memory.capacity
    rows = memory.store_rows[: int(memory.num_stored)]
    assert (rows != NO_ROW).all()
    assert len(rows.unique()) == 3  # of as many colours: what is shown makes no row another one


def test_the_next_training_goes_on_with_it(saved_llama: Path, tmp_path: Path) -> None:
    first = trainer_of(saved_llama, tmp_path)
    first.train()
    first.adapter.save(tmp_path / "final")
    enabled = trainer_of(tmp_path / "final", tmp_path, memory={})
    assert same(state_of(first), (enabled.initialize_model(), state_of(enabled))[1])
    assert all(p.requires_grad for p in memory_of(enabled).parameters())
    asleep = trainer_of(tmp_path / "final", tmp_path, lora=True, enabled_extensions=[], memory={})
    stored = memory_of(asleep).num_stored.clone()
    asleep.train()
    assert torch.equal(memory_of(asleep).query.weight, memory_of(first).query.weight)
    assert torch.equal(memory_of(asleep).num_stored, stored)
    other = trainer_of(tmp_path / "final", tmp_path, memory={"slots": 9})
    with pytest.raises(
        ConfigurationError,
        match=r"key_value_memory\.setting_differs.*training.memory.slots=9.*existing=5",
    ):
        other.initialize_model()


@pytest.mark.parametrize(
    ("training", "code"),
    [
        ({"strategy": "progressive"}, "stackwise.added_weights_with_stacks"),
        ({"time_step_masking": True}, "stackwise.added_weights_with_masking"),
    ],
)
def test_a_saved_one_is_refused_where_a_new_one_would_be(
    saved_llama: Path, tmp_path: Path, training: dict[str, Any], code: str
) -> None:
    first = trainer_of(saved_llama, tmp_path)
    first.initialize_model()
    first.adapter.save(tmp_path / "final")
    again = trainer_of(tmp_path / "final", tmp_path, enabled_extensions=[], memory={}, **training)
    refused = rf"^{re.escape(code)}\(key=memory in model .*/final"
    with pytest.raises(ConfigurationError, match=refused) as raised:
        again.initialize_model()
    assert "enabled_extensions" not in str(raised.value)


def test_what_it_is_stands_in_the_record_of_a_run(saved_llama: Path, tmp_path: Path) -> None:
    trainer = trainer_of(saved_llama, tmp_path)
    model = trainer.initialize_model()
    described = trainer.adapter.describe()
    facts = {"layer": 0, "slots": 5, "heads": 2, "width": 24, "store": 30}
    assert described["extensions"] == {"memory": facts}
    assert described["num_parameters"] == sum(p.numel() for p in model.parameters())
    trainer.hooks.detach(model)
    assert not added_modules(model)
