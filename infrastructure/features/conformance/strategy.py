"""The conformance suite of training strategies.

A strategy must train exactly the parameters that its phases name, and resume from a checkpoint as
if it had never stopped. Each method trains a tiny Llama for a few steps.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.core.state import Phase, TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.strategies.base_strategy import TrainingStrategy

Weights = dict[str, torch.Tensor]
MODEL = EmbeddedModelConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    vocab_size=270,
    max_positions=48,
)
NUM_ROWS = 16
RELATIVE, ABSOLUTE = 1e-3, 1e-6


class TrainingStrategySuite:
    """A suite for training strategies: subclass it and define `make`.

    Attributes:
        settings: settings of the training section that the strategy needs.
        trains_all_it_names: True if each phase changes every parameter that it trains.
    """

    settings: Mapping[str, Any] = {}
    trains_all_it_names = True

    def make(self, config: TrainingConfig) -> TrainingStrategy:
        """Return a new strategy for this configuration."""
        raise NotImplementedError

    def test_phases_are_always_the_same_ones(self, tmp_path: Path) -> None:
        trainer = self._trainer(tmp_path)
        strategy, model = trainer.strategy, trainer.initialize_model()
        phases = strategy.phases(model, 2)
        assert phases, "it has no phase: nothing would be trained"
        assert [vars(p) for p in strategy.phases(model, 2)] == [vars(p) for p in phases], (
            "asked twice, it has other phases"
        )
        names = {name for name, _ in model.named_parameters()}
        for phase in phases:
            assert phase.num_epochs >= 1, f"phase {phase.name!r} has {phase.num_epochs} epochs"
            strange = (phase.parameters or frozenset()) - names
            assert not strange, (
                f"phase {phase.name!r} names what the model does not have: {strange}"
            )

    def test_a_phase_trains_the_parameters_that_it_names(self, tmp_path: Path) -> None:
        watch = WhatTrains()
        trainer = self._trainer(tmp_path, watch)
        trainer.train()
        assert any(watch.changed), "no step has changed anything"
        for phase, changed in zip(watch.phases, watch.changed, strict=True):
            shown = f"phase {phase.name!r}"
            named = watch.trained if phase.parameters is None else phase.parameters & watch.trained
            others = sorted(changed - named)
            assert not others, f"{shown} changes {others[:3]}, which it does not name"
            left = sorted(named - changed)
            assert not (left and self.trains_all_it_names), f"{shown} does not train {left[:3]}"
            assert changed, f"{shown} changes nothing"

    def test_a_micro_batch_only_gathers_gradients(self, tmp_path: Path) -> None:
        trainer, step = self._first_step(tmp_path)
        before = _weights(trainer)
        output = step(self._examples(trainer), False)
        assert output.loss_sum.ndim == 0, "loss_sum is no single number"
        assert not output.loss_sum.requires_grad, "loss_sum holds on to the graph: detach it"
        counted = trainer.adapter.count_items(self._examples(trainer))
        assert output.num_items == counted, f"{output.num_items} items of {counted} are told"
        assert not _changed(before, _weights(trainer)), (
            "train_step changes weights although update_gradients is false"
        )
        assert _gradients(trainer), "train_step leaves no gradient"

    def test_a_split_batch_has_the_same_gradient(self, tmp_path: Path) -> None:
        trainer, step = self._first_step(tmp_path)
        examples = self._examples(trainer)
        step(examples, False)
        whole = _gradients(trainer)
        trainer.prepare().loop.optimizer_step.optimizer.zero_grad(set_to_none=True)
        total = trainer.adapter.count_items(examples)
        for piece in (examples[:1], examples[1:]):
            step(piece, False, total_items=total)
        split = _gradients(trainer)
        assert whole.keys() == split.keys(), "a split batch has gradients of other parameters"
        largest = max(float(gradient.abs().max()) for gradient in whole.values())
        for name, gradient in whole.items():
            error = float((gradient - split[name]).abs().max())
            assert error <= RELATIVE * largest + ABSOLUTE, (
                f"split, {name} has another gradient: divide by batch['total_items']"
            )

    def test_an_update_changes_weights_and_forgets_gradients(self, tmp_path: Path) -> None:
        trainer, step = self._first_step(tmp_path)
        before = _weights(trainer)
        step(self._examples(trainer), False)
        parts = trainer.prepare().loop.optimizer_step
        rate = parts.learning_rate
        parts.strategy.unscale_gradients(parts.optimizer, parts.scaler)
        norm = parts.strategy.update_parameters(
            trainer.model, parts.optimizer, parts.scaler, parts.scheduler
        )
        assert float(norm) > 0, f"the norm of the gradients is {float(norm)}"
        assert _changed(before, _weights(trainer)), "update_parameters changes no weight"
        assert not _gradients(trainer), "update_parameters leaves gradients for the next step"
        assert parts.learning_rate != rate, "the schedule does not advance"

    def test_the_learning_rate_is_that_of_the_step_alone(self, tmp_path: Path) -> None:
        trainer = self._trainer(tmp_path)
        trainer.prepare()
        one, other = (
            trainer.strategy.create_scheduler(trainer.create_optimizer(model), 8)
            for model in [trainer.initialize_model()] * 2
        )
        rates = []
        for _ in range(8):
            rates.append(one.get_last_lr())
            one.optimizer.step()
            one.step()
        assert all(rate >= 0 for group in rates for rate in group), f"negative rates: {rates}"
        other.load_state_dict({**other.state_dict(), "last_epoch": 4, "_step_count": 5})
        other.optimizer.step()
        other.step()
        assert other.get_last_lr() == rates[5], (
            f"going on after 5 steps the learning rate is {other.get_last_lr()}, not {rates[5]}"
        )

    def test_a_training_that_goes_on_gives_the_same_bits(self, tmp_path: Path) -> None:
        whole = self._trainer(tmp_path, checkpoints="whole")
        whole.train()
        assert whole.checkpoints is not None
        saved = by_step(whole.checkpoints.store)
        expected = _weights(whole)
        steps = sorted(saved)
        for step in {steps[1], steps[len(steps) // 2]}:
            again = self._trainer(tmp_path, checkpoints=f"again-{step}")
            again.restore(saved[step])
            again.train()
            differing = _changed(expected, _weights(again))
            assert not differing, f"going on after step {step}, other bits: {sorted(differing)[:3]}"

    def _trainer(
        self, folder: Path, *hooks: Observer, checkpoints: str | None = None
    ) -> EnhancedTrainer:
        config = tiny_training(**self.settings)
        return tiny_trainer(
            folder,
            config,
            training_strategy=self.make(config),
            checkpoint_directory=folder / checkpoints if checkpoints else None,
            hooks=hooks,
        )

    def _first_step(self, folder: Path) -> tuple[EnhancedTrainer, Callable[..., Any]]:
        """Return a trainer at the start of its first phase, and its strategy's `train_step`."""
        trainer = self._trainer(folder)
        loop = trainer.prepare().loop
        model, strategy = trainer.initialize_model().train(), trainer.strategy
        optimizer = loop.optimizer_step.optimizer
        strategy.enter_phase(model, optimizer, 0)
        wanted = loop.phases[0].parameters
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and (wanted is None or name in wanted))
        strategy.begin_step(0, self._examples(trainer))

        def step(examples: list[Any], update: bool, **further: Any) -> Any:
            batch = {**trainer.adapter.prepare_batch(examples), **further}
            return strategy.train_step(model, batch, optimizer, None, None, update)

        return trainer, step

    def _examples(self, trainer: EnhancedTrainer) -> list[Any]:
        return list(next(iter(trainer.initialize_data().train_batches(0, 0, 4))))


def tiny_training(**settings: Any) -> TrainingConfig:
    """Return the configuration of a run of eight steps that saves after each of them."""
    values = {"batch_size": 4, "num_epochs": 2, "warmup_steps": 2, "learning_rate": 3e-3}
    saving = {"checkpoint_frequency": 1, "keep_checkpoints": 99, "mixed_precision": False}
    return TrainingConfig(**{**values, **saving, "seed": 1, **settings})


def tiny_data(folder: Path) -> DataConfig:
    """Write sixteen rows into `folder`, and return the data settings for them."""
    rows = [{"prompt": f"{n}?", "completion": f"{n * 7 % 10}"} for n in range(NUM_ROWS)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return DataConfig(path=str(path), max_length=48, validation_split=0, num_workers=0)


def tiny_trainer(
    folder: Path, config: TrainingConfig | None = None, **options: Any
) -> EnhancedTrainer:
    """Return a trainer of a tiny Llama and a few rows; `options` go to EnhancedTrainer."""
    return EnhancedTrainer(
        ModelConfig(embedded=MODEL),
        config or tiny_training(),
        tiny_data(folder),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        **options,
    )


class WhatTrains(Observer):
    """An observer that records the parameters that change in each phase.

    Attributes:
        trained: names of the parameters that the optimizer holds when training starts.
    """

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.changed: list[set[str]] = []
        self.trained: set[str] = set()
        self._before: Weights = {}

    def train_start(self, state: TrainingState) -> None:
        assert state.optimizer is not None
        held = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
        self.trained = {name for name, p in state.model.named_parameters() if id(p) in held}

    def phase_start(self, state: TrainingState) -> None:
        self.phases.append(state.phase)
        self.changed.append(set())

    def step_start(self, state: TrainingState) -> None:
        self._before = _copy(state.model)

    def step_end(self, state: TrainingState) -> None:
        self.changed[-1] |= _changed(self._before, _copy(state.model))


def _copy(model: torch.nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _weights(trainer: EnhancedTrainer) -> Weights:
    return _copy(trainer.initialize_model())


def _gradients(trainer: EnhancedTrainer) -> Weights:
    named = trainer.initialize_model().named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def _changed(before: Weights, after: Weights) -> set[str]:
    return {n for n in before if n not in after or not torch.equal(before[n], after[n])}
