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
from functools import partial
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
    FeatureDecoders,
    reconstruction_loss,
)
from infrastructure.features.stackwise.training.stack_adapters import StackAdapters
from infrastructure.features.stackwise.training.stack_phases import (
    ADAPTERS,
    STACKWISE,
    StackPhase,
    Unit,
    caches_trunk,
    plan_stacks,
)
from infrastructure.features.stackwise.training.trunk_output import TrunkCache
from infrastructure.models.model_inputs import probing
from infrastructure.models.saving import TRAINING_ONLY
from infrastructure.training.core.state import Phase, StepOutput
from infrastructure.training.strategies.base_strategy import (
    NOT_ENTERED,
    HasLossSum,
    ParameterGroups,
    TrainingStrategy,
    decay_groups,
)
from infrastructure.training.strategies.run_parts import ExampleSource, RunParts


class StackedModel:
    """A model that is prepared for block-wise training, with all modules that train with it.

    Attributes:
        rack: the parts of the model.
        loaded_dtype: the dtype of the layers' weights as loaded.
        plan: the phases; with one epoch each until `StackwiseStrategy.phases` is called.
        adapters: the low-rank matrices of the layers, if configured.
        decoders: a feature decoder for each unit below the top one; empty: none are used.

    Raises:
        ValueError: the model cannot run in parts.
    """

    def __init__(self, config: TrainingConfig, model: torch.nn.Module) -> None:
        self.config = config
        self.rack = Rack(model)
        self.rack.check()
        self.loaded_dtype = next(self.rack.layers[0].parameters()).dtype
        self.plan = plan_stacks(config, self.rack, 1)
        self._check_forms()
        self.adapters = StackAdapters(config, self.plan, self.rack.layers, config.seed)
        num_decoders = len(self.plan.units) - 1 if config.local_loss == "reconstruct" else 0
        self.decoders = FeatureDecoders(self.rack.hidden_size, num_decoders)
        if num_decoders:
            self.decoders.attach_to(model)
        self._names: list[list[str]] = []  # of the optimizer's parameters, by group

    def _check_forms(self) -> None:
        """Check in advance that this machine supports the planned storage formats."""
        for phase in self.plan.phases:
            for form in forms_of(self.config, self.plan, phase, len(self.rack)):
                if form.stored_as is None:
                    continue
                quantized_bytes(form.stored_as, 1, BLOCK)
                if any(p.ndim == 3 and p.shape[-1] >= BLOCK for p in self.rack.layers.parameters()):
                    raise InputError("stackwise.experts_cannot_be_quantized")

    def trunk(self, start: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield, by name, all tensors that the output of the layers below `start` depends on."""
        named = dict(self.rack.model.named_parameters())
        yield from ((name, named[name]) for name in self.rack.below)
        for index, layer in enumerate(self.rack.layers[:start]):
            for name, tensor in layer.state_dict().items():
                yield f"{index}.{name}", tensor

    def take_precision(self, optimizer: torch.optim.Optimizer, phase: StackPhase) -> None:
        """Convert each layer to its dtype in a phase.

        Finished layers get the configured storage format, the unit that trains gets the precision
        of a new stack, and all others get the format in which they were loaded.
        """
        model = self.rack.model
        if not self._names:
            by_id = {id(p): name for name, p in model.named_parameters()}
            self._names = [[by_id[id(p)] for p in g["params"]] for g in optimizer.param_groups]
        wanted = forms_of(self.config, self.plan, phase, len(self.rack))
        if take_forms(self.rack.layers, wanted, self.loaded_dtype):
            named = dict(model.named_parameters())
            for group, names in zip(optimizer.param_groups, self._names, strict=True):
                group["params"] = [named[name] for name in names if name in named]
            living = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for parameter in [p for p in optimizer.state if id(p) not in living]:
                del optimizer.state[parameter]
            self.adapters.hook()

    def finish(self) -> None:
        """Convert the model back to its loaded formats, with the low-rank matrices merged.

        A model that has been converted back already is left as it is.
        """
        take_forms(self.rack.layers, [AS_LOADED] * len(self.rack), self.loaded_dtype)
        self.adapters.merge()
        if hasattr(self.rack.model, TRAINING_ONLY):
            delattr(self.rack.model, TRAINING_ONLY)


class StackwiseStrategy(TrainingStrategy):
    """The strategy for block-wise training: `progressive`, `end_to_end`, and every `mode`.

    Attributes:
        stacks: the prepared model, from `prepare_model` on.
        cache: the cache of frozen layers' output; None: none is used, or no phase has begun.
    """

    has_forms = True
    stacks: StackedModel

    def __init__(self, config: TrainingConfig, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger)
        self.cache: TrunkCache | None = None

    def run_parts(self, trainer: Any) -> RunParts:
        return StackRun(self, trainer)

    @property
    def cache_source(self) -> ExampleSource | None:
        """The source of examples for the cache of frozen layers' output. None: no cache."""
        is_used = caches_trunk(self.config, self.stacks.plan.phases[-1].num_epochs)
        return self.source if is_used else None

    def prepare_model(self, model: torch.nn.Module) -> None:
        """Find the layers of the model, check that they can train separately, and add modules.

        The added modules are feature decoders and low-rank matrices, if configured.

        Raises:
            ValueError: the model cannot run in parts.
        """
        self.stacks = StackedModel(self.config, model)

    def notes(self) -> list[str]:
        """Return notes on the division into units, to print before training begins."""
        size, num_layers = self.config.block_size, len(self.stacks.rack)
        is_given = "block_size" in self.config.model_fields_set and self.config.mode is not None
        if not is_given or size <= num_layers:
            return []
        return [phrase("stackwise.block_larger_than_model", size=size, num_layers=num_layers)]

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        """Return a phase for each unit (and time step), of `num_epochs` epochs each."""
        self.stacks.plan = plan_stacks(self.config, self.stacks.rack, num_epochs)
        return list(self.stacks.plan.phases)

    def check_length(self, total_steps: int) -> None:
        *earlier, last = self.stacks.plan.phases
        before = sum(phase.num_epochs for phase in earlier) * self.steps_per_epoch
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
        phases = self.stacks.plan.phases
        unit = phases[index].unit
        last = None if self.entered == NOT_ENTERED else phases[self.entered].unit
        is_new = self.entered < index and unit != last
        if self.config.progressive.init == "copy" and is_new and unit is not None and unit.index:
            copy_from_below(self.stacks.rack, unit)
        self.take_form(model, optimizer, index)
        self._fill_cache(model, phases[index])

    def _fill_cache(self, model: torch.nn.Module, phase: StackPhase) -> None:
        """Cache the frozen layers' output for all examples of a phase before training needs it."""
        stacks, source = self.stacks, self.cache_source
        if source is None:
            return
        if self.cache is None:
            given = self.config.cache_dir
            folder = Path(given).expanduser() if given else source.folder
            self.cache = TrunkCache(
                stacks.rack, source, folder / "activations", self.config, stacks.plan.phases
            )

        def run(batch: Mapping[str, object]) -> torch.Tensor:
            with self.precision.autocast():
                return self._compute_trunk(model, dict(batch))

        self.cache.enter(phase, stacks.trunk(phase.start), run)

    def close(self, is_over: bool) -> None:
        if self.cache is not None:
            self.cache.close(is_over)
            self.cache = None
        if is_over and hasattr(self, "stacks"):  # it is missing if the model was refused
            self.stacks.finish()

    def take_form(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        """Convert the model to the storage formats of phase `index`, whatever formats it has now.

        The weights keep their values, unless a checkpoint is loaded afterwards.
        """
        self.entered = index
        phases = self.stacks.plan.phases
        phase = phases[index] if 0 <= index < len(phases) else None
        if self.objective is not None:
            self.objective.time_step = None if phase is None else phase.time_step
        if phase is None:
            return
        self.stacks.take_precision(optimizer, phase)
        model.train()
        for layer in self.stacks.rack.layers[: phase.start]:
            layer.eval()
        wanted = phase.parameters
        if wanted is not None:
            for name, parameter in model.named_parameters():
                if name not in wanted:
                    optimizer.state.pop(parameter, None)
                    parameter.grad = None

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
        if self.config.grows_once:
            return super().create_scheduler(optimizer, total_steps)
        ends: list[int] = []
        for phase in self.stacks.plan.phases:
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
        return self.stacks.plan.phases[self.entered]

    @contextmanager
    def measuring(self, model: torch.nn.Module) -> Iterator[None]:
        wanted = self.phase.parameters
        others = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and wanted is not None and name not in wanted
        ]
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
        inputs = {key: value for key, value in batch.items() if key != "total_items"}
        total_items = batch.get("total_items")
        step = self._step_of_all if self.stacks.plan.kind == STACKWISE else self._step_of_unit
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
        phase, rack = self.phase, self.stacks.rack
        start = self._trunk_output(model, inputs) if phase.start else None
        if phase.unit is not None and phase.unit.index < len(self.stacks.decoders):
            return self._reconstruct(model, inputs, phase.unit, start, total_items, scaler)[0]
        with rack.span(phase.start, phase.depth, start):
            output = self.compute_loss(model, inputs)
        return _learn(output, total_items, scaler)

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
        run = partial(self.compute_loss, model, inputs)
        with probing(model), torch.no_grad():
            return self.stacks.rack.hidden_at(self.phase.start, run)

    def _reconstruct(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        unit: Unit,
        start: torch.Tensor | None,
        total_items: int | None,
        scaler: torch.amp.GradScaler | None,
    ) -> tuple[StepOutput, torch.Tensor]:
        """Train a unit below the top by feature reconstruction; also return its output, detached.

        The reported loss is the reconstruction error per supervised item.
        """
        rack, decoder = self.stacks.rack, self.stacks.decoders[unit.index]
        run = partial(self.compute_loss, model, inputs)
        given = start
        if given is None:  # the embedding's output
            with torch.no_grad():
                given = rack.hidden_at(unit.first, run)
        output = rack.hidden_at(unit.last, run, unit.first, start)
        error = reconstruction_loss(decoder, output, given, inputs.get("target_positions"))
        num_items = _num_items(inputs)
        loss_sum = error * self.config.reconstruct_weight * num_items
        return _learn(StepOutput(loss_sum, num_items), total_items, scaler), output.detach()

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
        rack = self.stacks.rack
        start: torch.Tensor | None = None
        for unit in self.stacks.plan.units:
            if unit.index < len(self.stacks.decoders):
                _, start = self._reconstruct(model, inputs, unit, start, total_items, scaler)
                continue
            last = unit.last - 1
            with rack.output_of(last) as outputs, rack.span(unit.first, unit.last, start):
                output = self.compute_loss(model, inputs)
            start = outputs[-1].detach()
            trained = _learn(output, total_items, scaler)
        return trained

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the model has only the layers that have trained so far."""
        if self.entered == NOT_ENTERED:
            return nullcontext()
        return self.stacks.rack.span(0, self.phase.depth)


def _num_items(inputs: Mapping[str, Any]) -> int:
    """Return the number of items in a batch's mean loss: trained tokens, or else examples."""
    if "target_positions" in inputs:
        return int(inputs["target_positions"].numel())
    return len(inputs["inputs"])


def _learn(
    output: HasLossSum, total_items: int | None, scaler: torch.amp.GradScaler | None
) -> StepOutput:
    """Run the backward pass of a loss, divided by the number of items."""
    loss = output.loss_sum / (total_items or max(1, output.num_items))
    (loss if scaler is None else scaler.scale(loss)).backward()
    return StepOutput(output.loss_sum.detach(), output.num_items)
