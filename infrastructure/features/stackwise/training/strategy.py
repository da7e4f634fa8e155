"""Block-wise training: one group of layers (a unit) after another, or all with separate losses.

`stack_phases` defines the phases. This strategy performs their steps and converts the model to the
storage formats that each phase needs. The formats depend only on the phase, so a run that resumes
or rolls back converts the model directly, without repeating earlier work.

- SEQUENTIAL: a unit learns from the loss of the model that ends with it. The layers below only pass
  hidden states up, without gradients.
- STACKWISE: each step trains all units, each from the detached hidden states of the unit below, so
  that only one unit's activations are kept at a time.
- RACKWISE: one loss on top, ordinary backpropagation.

Source of feature reconstruction: LoPT, arXiv 2605.04913.
"""

import bisect
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.features.stackwise.training.growth import copy_from_below
from infrastructure.features.stackwise.training.layer_forms import AS_LOADED, forms_of, take_forms
from infrastructure.features.stackwise.training.outputs import StackRun
from infrastructure.features.stackwise.training.quantized_trunk import BLOCK, quantized_bytes
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.reconstruction import (
    TRAINING_ONLY,
    FeatureDecoders,
    reconstruction_loss,
)
from infrastructure.features.stackwise.training.stack_adapters import StackAdapters
from infrastructure.features.stackwise.training.stack_phases import (
    ADAPTERS,
    STACKWISE,
    StackPhase,
    StackPlan,
    adapter_pairs,
    caches_trunk,
    plan_stacks,
)
from infrastructure.features.stackwise.training.trunk_output import TrunkCache
from infrastructure.models.model_inputs import probing
from infrastructure.training.core.state import Phase, StepOutput
from infrastructure.training.strategies.base_strategy import (
    NOT_ENTERED,
    ParameterGroups,
    TrainingStrategy,
    decay_groups,
)
from infrastructure.training.strategies.run_parts import ExampleSource, RunParts


class StackwiseStrategy(TrainingStrategy):
    """The strategy for block-wise training: `progressive`, `end_to_end`, and every `mode`.

    Attributes:
        plan: the phases of the run; None before `phases` is called.
    """

    has_forms = True

    def __init__(self, config: TrainingConfig, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger)
        self.rack: Rack | None = None
        self.plan: StackPlan | None = None
        self.decoders: FeatureDecoders | None = None
        self.adapters: StackAdapters | None = None
        self._names: list[list[str]] | None = None  # of the optimizer's parameters, by group
        self._loaded_dtype = torch.float32
        self.cache: TrunkCache | None = None

    def run_parts(self, trainer: Any) -> RunParts:
        return StackRun(self, trainer)

    @property
    def cache_source(self) -> ExampleSource | None:
        """The source of examples for the cache of frozen layers' output. None: no cache."""
        assert self.plan is not None
        is_used = caches_trunk(self.config, self.plan.phases[-1].num_epochs)
        return self.source if is_used else None

    def prepare_model(self, model: torch.nn.Module) -> None:
        """Find the layers of the model, check that they can train separately, and add modules.

        The added modules are feature decoders and low-rank matrices, if configured.

        Raises:
            ValueError: the model cannot run in parts.
        """
        if self.rack is not None and self.rack.model is model:
            return
        self.rack = Rack(model)
        self.rack.check()
        self._loaded_dtype = next(self.rack.layers[0].parameters()).dtype
        self.plan = plan_stacks(self.config, self.rack, 1)
        self._check_forms()
        if self.config.local_loss == "reconstruct":
            self.decoders = FeatureDecoders(self.rack.hidden_size, len(self.plan.units) - 1)
            self.decoders.attach_to(model)
        if any(adapter_pairs(self.config, self.plan, unit) for unit in self.plan.units):
            self.adapters = StackAdapters(
                self.config, self.plan, list(self.rack.layers), self.config.seed
            )

    def notes(self) -> list[str]:
        """Return notes on the division into units, to print before training begins."""
        size, rack = self.config.block_size, self.rack
        is_given = "block_size" in self.config.model_fields_set and self.config.mode is not None
        if rack is None or not is_given or size <= len(rack):
            return []
        return [phrase("stackwise.block_larger_than_model", size=size, num_layers=len(rack))]

    def _check_forms(self) -> None:
        """Check in advance that this machine supports the planned storage formats."""
        assert self.plan is not None
        assert self.rack is not None
        for phase in self.plan.phases:
            for form in forms_of(self.config, self.plan, phase, len(self.rack)):
                if form.stored_as is None:
                    continue
                quantized_bytes(form.stored_as, 1, BLOCK)
                if any(p.ndim == 3 and p.shape[-1] >= BLOCK for p in self.rack.layers.parameters()):
                    raise InputError("stackwise.experts_cannot_be_quantized")

    @property
    def loaded_dtype(self) -> torch.dtype:
        """The dtype of the layers' weights as loaded."""
        return self._loaded_dtype

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        """Return a phase for each unit (and time step), of `num_epochs` epochs each."""
        self.prepare_model(model)
        assert self.rack is not None
        self.plan = plan_stacks(self.config, self.rack, num_epochs)
        return list(self.plan.phases)

    def check_length(self, total_steps: int) -> None:
        assert self.plan is not None
        last = self.plan.phases[-1]
        before = sum(phase.num_epochs for phase in self.plan.phases[:-1]) * self.steps_per_epoch
        if total_steps <= before:
            epochs = phrase("stackwise.fewer_epochs_per_phase", num_epochs=last.num_epochs)
            raise InputError(
                "stackwise.last_phase_not_reached",
                total_steps=total_steps,
                phase=last.name,
                first_step=before + 1,
                steps_before=before,
                fewer_epochs=epochs if last.num_epochs > 1 else "",
            )

    # The form of the model

    def enter_phase(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        """Begin or resume phase `index`.

        Initialize a new unit, convert the layers to their storage formats, and fill the cache.
        """
        self.prepare_model(model)
        assert self.plan is not None
        assert self.rack is not None
        phase = self.plan.phases[index]
        unit, last = phase.unit, self._unit_index(self.entered)
        is_copied = self.config.progressive.init == "copy" and self.entered < index
        if is_copied and unit is not None and last < unit.index > 0:
            copy_from_below(self.rack, unit)
        self.take_form(model, optimizer, index)
        self._fill_cache(model, phase)

    def _fill_cache(self, model: torch.nn.Module, phase: StackPhase) -> None:
        """Cache the frozen layers' output for all examples of a phase before training needs it."""
        if self.cache_source is None:
            return
        assert self.rack is not None
        assert self.plan is not None
        if self.cache is None:
            given = self.config.cache_dir
            folder = Path(given).expanduser() if given else self.cache_source.folder
            self.cache = TrunkCache(
                self.rack, self.cache_source, folder / "activations", self.config, self.plan.phases
            )
        if phase.start == 0:
            self.cache.leave()
            return

        def run(batch: Mapping[str, object]) -> torch.Tensor:
            with self.precision.autocast():
                return self._compute_trunk(model, dict(batch))

        self.cache.enter(phase, self._trunk(phase.start), run)

    def _trunk(self, start: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield, by name, all tensors that the output of the layers below `start` depends on."""
        assert self.rack is not None
        named = dict(self.rack.model.named_parameters())
        yield from ((name, named[name]) for name in self.rack.below)
        for index, layer in enumerate(self.rack.layers[:start]):
            for name, tensor in layer.state_dict().items():
                yield f"{index}.{name}", tensor

    def close(self, is_over: bool) -> None:
        if self.cache is not None:
            self.cache.close(is_over)
            self.cache = None
        if is_over and self.rack is not None:
            self._finish()

    def _finish(self) -> None:
        """Convert the model back to its loaded formats, with the low-rank matrices merged."""
        assert self.rack is not None
        layers = list(self.rack.layers)
        take_forms(layers, [AS_LOADED] * len(layers), self._loaded_dtype)
        if self.adapters is not None:
            self.adapters.merge()
            self.adapters = None
        if self.decoders is not None:
            delattr(self.rack.model, TRAINING_ONLY)
            self.decoders = None

    def _unit_index(self, phase_index: int) -> int:
        assert self.plan is not None
        if phase_index < 0:
            return -1
        unit = self.plan.phases[phase_index].unit
        return unit.index if unit is not None else len(self.plan.units)

    def take_form(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        """Convert the model to the storage formats of phase `index`, whatever formats it has now.

        The weights keep their values, unless a checkpoint is loaded afterwards.
        """
        self.prepare_model(model)
        assert self.plan is not None
        assert self.rack is not None
        self.entered = index
        if self.objective is not None:
            inside = 0 <= index < len(self.plan.phases)
            self.objective.time_step = self.plan.phases[index].time_step if inside else None
        if index == NOT_ENTERED or index >= len(self.plan.phases):
            return
        phase = self.plan.phases[index]
        self._take_precision(model, optimizer, phase)
        model.train()
        for layer in self.rack.layers[: phase.start]:
            layer.eval()
        wanted = phase.parameters
        if wanted is not None:
            for name, parameter in model.named_parameters():
                if name not in wanted:
                    optimizer.state.pop(parameter, None)
                    parameter.grad = None

    def _take_precision(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, phase: StackPhase
    ) -> None:
        """Convert each layer to its number format in a phase.

        Finished layers get the configured storage format, the unit that trains gets the precision
        of a new stack, and all others get the format in which they were loaded.
        """
        assert self.rack is not None
        assert self.plan is not None
        if self._names is None:
            by_id = {id(p): name for name, p in model.named_parameters()}
            self._names = [[by_id[id(p)] for p in g["params"]] for g in optimizer.param_groups]
        wanted = forms_of(self.config, self.plan, phase, len(self.rack))
        if take_forms(list(self.rack.layers), wanted, self._loaded_dtype):
            named = dict(model.named_parameters())
            for group, names in zip(optimizer.param_groups, self._names, strict=True):
                group["params"] = [named[name] for name in names if name in named]
            living = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for parameter in [p for p in optimizer.state if id(p) not in living]:
                del optimizer.state[parameter]
            if self.adapters is not None:
                self.adapters.hook()

    def parameter_groups(self, model: torch.nn.Module, learning_rate: float) -> ParameterGroups:
        """Return the parameter groups, with a separate learning rate for low-rank matrices."""
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        decay, rate = self.config.weight_decay, self.config.qlora_lr or learning_rate
        beside = [(name, p) for name, p in named if ADAPTERS in name]
        weights = [(name, p) for name, p in named if ADAPTERS not in name]
        return [
            *decay_groups(weights, learning_rate, decay),
            *(decay_groups(beside, rate, decay) if beside else []),
        ]

    def create_scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int) -> LambdaLR:
        """Create a scheduler that restarts in each phase, because each phase trains new parameters.

        A model that grows in one step has a single schedule: earlier parameters continue to train.
        """
        assert self.plan is not None
        if self.config.grows_once:
            return super().create_scheduler(optimizer, total_steps)
        ends: list[int] = []
        for phase in self.plan.phases:
            begin = ends[-1] if ends else 0
            ends.append(min(total_steps, begin + phase.num_epochs * self.steps_per_epoch))
        ends[-1] = max(ends[-1], total_steps)
        factors = [
            self.rate_factor(end - begin) for begin, end in zip([0, *ends], ends, strict=False)
        ]

        def factor(step: int) -> float:
            index = min(bisect.bisect_right(ends, step), len(ends) - 1)
            return factors[index](step - (ends[index - 1] if index else 0))

        return LambdaLR(optimizer, factor)

    # The step

    @property
    def phase(self) -> StackPhase:
        """The current phase.

        Before the first phase begins, this is the last phase, which is the deepest, so that
        measurements include all layers.
        """
        assert self.plan is not None
        return self.plan.phases[self.entered]

    @contextmanager
    def measuring(self, model: torch.nn.Module) -> Iterator[None]:
        self.prepare_model(model)
        wanted = self.phase.parameters
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        others = [p for name, p in trained if wanted is not None and name not in wanted]
        try:
            for parameter in others:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)

    def train_step(
        self,
        model: torch.nn.Module,
        batch: dict[str, Any],
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        scheduler: LambdaLR | None,
        update_gradients: bool = True,
    ) -> StepOutput:
        if self.compute_loss is None:
            raise InputError("training.strategy_without_loss")
        self.prepare_model(model)
        assert self.plan is not None
        inputs = {key: value for key, value in batch.items() if key != "total_items"}
        total_items = batch.get("total_items")
        step = self._step_of_all if self.plan.kind == STACKWISE else self._step_of_unit
        with self.precision.autocast():
            output = step(model, inputs, total_items, scaler)
        if update_gradients:
            self.unscale_gradients(optimizer, scaler)
            self.update_parameters(model, optimizer, scaler, scheduler)
        return output

    def _step_of_unit(
        self,
        model: torch.nn.Module,
        inputs: dict[str, object],
        total_items: int | None,
        scaler: torch.amp.GradScaler | None,
    ) -> StepOutput:
        """Train the current unit on the loss of the model that ends with it.

        The backward pass ends at the first layer of the phase that has gradients.
        """
        assert self.rack is not None
        assert self.compute_loss is not None
        phase = self.phase
        start = self._trunk_output(model, inputs) if phase.start else None
        if self._reconstructs(phase):
            return self._reconstruct(model, inputs, phase, start, total_items, scaler)
        with self.rack.span(phase.start, phase.depth, start):
            output = self.compute_loss(model, inputs)
        items = total_items or max(1, output.num_items)
        _backward(output.loss_sum / items, scaler)
        return StepOutput(output.loss_sum.detach(), output.num_items)

    def _trunk_output(self, model: torch.nn.Module, inputs: dict[str, object]) -> torch.Tensor:
        """Return the output of the frozen layers, from the cache or computed."""
        if self.cache is not None:
            like = next(p for p in model.parameters() if p.is_floating_point())
            cached = self.cache.read(inputs, like)
            if cached is not None:
                return cached
        return self._compute_trunk(model, inputs)

    def _compute_trunk(self, model: torch.nn.Module, inputs: dict[str, object]) -> torch.Tensor:
        """Compute the output of the frozen layers, without dropout and gradients."""
        assert self.rack is not None
        with probing(model), torch.no_grad():
            return self.rack.hidden_at(self.phase.start, lambda: self._forward(model, inputs))

    def _forward(self, model: torch.nn.Module, inputs: dict[str, object]) -> object:
        assert self.compute_loss is not None
        return self.compute_loss(model, inputs)

    def _reconstructs(self, phase: StackPhase) -> bool:
        assert self.plan is not None
        is_top = phase.unit is None or phase.unit.index == len(self.plan.units) - 1
        return self.decoders is not None and not is_top

    def _reconstruct(
        self,
        model: torch.nn.Module,
        inputs: dict[str, object],
        phase: StackPhase,
        start: torch.Tensor | None,
        total_items: int | None,
        scaler: torch.amp.GradScaler | None,
    ) -> StepOutput:
        """Train a unit below the top by feature reconstruction.

        The reported loss is the reconstruction error per supervised item.
        """
        assert self.rack is not None
        assert phase.unit is not None
        num_items = _num_items(inputs)
        loss, _ = self._feature_loss(model, inputs, phase.unit.index, start)
        _backward(loss * (num_items / (total_items or max(1, num_items))), scaler)
        return StepOutput(loss.detach() * num_items, num_items)

    def _feature_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        index: int,
        start: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted reconstruction loss of a unit, and its output, detached."""
        assert self.rack is not None
        assert self.plan is not None
        assert self.decoders is not None
        unit = self.plan.units[index]

        def run() -> object:
            return self._forward(model, inputs)

        given = start
        if given is None:  # the embedding's output
            with torch.no_grad():
                given = self.rack.hidden_at(unit.first, run)
        output = self.rack.hidden_at(unit.last, run, unit.first, start)
        positions = inputs.get("target_positions")
        loss = reconstruction_loss(self.decoders[index], output, given, positions)
        return loss * self.config.reconstruct_weight, output.detach()

    def _step_of_all(
        self,
        model: torch.nn.Module,
        inputs: dict[str, object],
        total_items: int | None,
        scaler: torch.amp.GradScaler | None,
    ) -> StepOutput:
        """Train all units, from the input up, each with its own loss and backward pass.

        The reported loss is that of the top unit, which is the loss of the model.
        """
        assert self.rack is not None
        assert self.plan is not None
        assert self.compute_loss is not None
        start: torch.Tensor | None = None
        for unit in self.plan.units:
            is_top = unit is self.plan.units[-1]
            if self.decoders is not None and not is_top:
                num_items = _num_items(inputs)
                loss, start = self._feature_loss(model, inputs, unit.index, start)
                _backward(loss * (num_items / (total_items or max(1, num_items))), scaler)
                continue
            last = unit.last - 1
            with self.rack.output_of(last) as outputs, self.rack.span(unit.first, unit.last, start):
                output = self.compute_loss(model, inputs)
            start = outputs[-1].detach()
            items = total_items or max(1, output.num_items)
            _backward(output.loss_sum / items, scaler)
        return StepOutput(output.loss_sum.detach(), output.num_items)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the model has only the layers that have trained so far."""
        if self.rack is None or self.entered == NOT_ENTERED:
            return nullcontext()
        return self.rack.span(0, self.phase.depth)


def _num_items(inputs: Mapping[str, Any]) -> int:
    """Return the number of items in a batch's mean loss: trained tokens, or else examples."""
    if "target_positions" in inputs:
        return int(inputs["target_positions"].numel())
    return len(inputs["inputs"])


def _backward(loss: torch.Tensor, scaler: torch.amp.GradScaler | None) -> None:
    (loss if scaler is None else scaler.scale(loss)).backward()
