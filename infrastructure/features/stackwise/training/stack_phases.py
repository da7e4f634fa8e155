"""The phases of a block-wise run: which layers train, and which layers run.

The phases are a pure function of the configuration and the shape of the model, so a resumed run has
the same phases. A unit is a group of layers that train together: `block_size` layers or a stack.
The trunk is everything below the unit that trains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.models.saving import TRAINING_ONLY
from infrastructure.training.core.state import Phase

ADAPTERS = "stack_adapters"  # the module in a layer with its low-rank matrices
OWN = "0"
SEQUENTIAL, STACKWISE, RACKWISE = "sequential", "stackwise", "rackwise"


@dataclass(frozen=True)
class Unit:
    """A group of layers [first, last) that train together."""

    index: int
    first: int
    last: int

    @property
    def name(self) -> str:
        if self.last - self.first == 1:
            return f"layer {self.last}"
        return f"layers {self.first + 1} to {self.last}"


@dataclass
class StackPhase(Phase):
    """A phase of block-wise training.

    Attributes:
        unit: the unit that trains; None: all units.
        start: the first layer with gradients; the layers below only have a forward pass.
        depth: number of layers that run, counted from the input.
        time_step: time step of all masks of this phase; None: there are no masks, or each example
            draws its own.
    """

    unit: Unit | None = None
    start: int = 0
    depth: int = 0
    time_step: int | None = None


@dataclass
class StackPlan:
    """All phases of a block-wise run.

    Attributes:
        kind: SEQUENTIAL (one unit after the other), STACKWISE (all at once, each with its own loss)
            or RACKWISE (all at once, one loss).
    """

    kind: str
    units: list[Unit]
    phases: list[StackPhase] = field(default_factory=list)

    @property
    def is_sequential(self) -> bool:
        return self.kind == SEQUENTIAL


def kind_of(config: TrainingConfig) -> str:
    """Return the kind of plan that follows from `strategy`, `mode` and `end_to_end_scope`."""
    return SEQUENTIAL if config.trains_units_in_turn else config.end_to_end_scope


def caches_trunk(config: TrainingConfig, num_epochs: int) -> bool:
    """Return whether the output of frozen layers is cached; by default, if it is used again."""
    if config.cache_activations is None:
        return config.trunk_can_be_cached and num_epochs > 1
    return config.cache_activations


def divide(num_layers: int, config: TrainingConfig) -> list[Unit]:
    """Divide a model's layers into units.

    Raises:
        ValueError: the model has fewer layers than stacks; the message contains both numbers.
    """
    if config.mode == "layerwise":
        sizes = [1] * num_layers
    elif config.mode is not None:
        size = config.block_size
        sizes = [min(size, num_layers - first) for first in range(0, num_layers, size)]
    else:
        wanted = config.progressive.target_stacks
        if kind_of(config) == RACKWISE:  # stacks only matter for saving here
            wanted = min(wanted, num_layers)
        if wanted > num_layers:
            raise InputError(
                "stackwise.more_stacks_than_layers", wanted=wanted, num_layers=num_layers
            )
        sizes = [(s + 1) * num_layers // wanted - s * num_layers // wanted for s in range(wanted)]
        if config.strategy == "progressive" and config.progressive.growth == "once":
            sizes = [sizes[0], num_layers - sizes[0]] if wanted > 1 else sizes
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [
        Unit(index, end - size, end)
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


def plan_stacks(config: TrainingConfig, rack: Rack, num_epochs: int) -> StackPlan:
    """Plan all phases of a run, each with `num_epochs` passes over the data.

    Raises:
        ValueError: the model cannot be divided as configured.
    """
    units = divide(len(rack), config)
    plan = StackPlan(kind_of(config), units)
    if not plan.is_sequential:
        names = None
        if config.qlora_enabled:
            names = frozenset(adapter_names(rack, 0, len(rack), [OWN]))
        plan.phases = [StackPhase("all stacks", num_epochs, names, start=0, depth=len(rack))]
        return plan
    for unit in units:
        for time_step in time_steps_of(config, unit.index, len(units)):
            plan.phases.append(_phase(config, rack, unit, units, num_epochs, time_step))
    return plan


def _phase(
    config: TrainingConfig,
    rack: Rack,
    unit: Unit,
    units: Sequence[Unit],
    num_epochs: int,
    time_step: int | None,
) -> StackPhase:
    if config.progressive.new_stack_precision == "nf_fp8":
        names = adapter_names(rack, unit.first, unit.last, [OWN])
    else:
        names = weight_names(rack, unit.first, unit.last)
    if config.trunk_is_adapted:
        for below in units[: unit.index]:
            newest = unit.index - below.index if config.trunk_is_adapted_again else 1
            keys = [str(1 + number) for number in range(newest)]
            names += adapter_names(rack, below.first, below.last, keys)
    trains_trunk = config.trunk_trains
    if trains_trunk:
        names += weight_names(rack, 0, unit.first)
    if unit.index == 0 or trains_trunk:
        names += rack.below
    if trains_head(config, unit, units):
        names += rack.above
    names += decoder_names(rack, unit)
    training = Unit(unit.index, 0, unit.last) if trains_trunk else unit
    what = f"{training.name} of {len(rack)}"
    if time_step is not None:
        what += f", time step {time_step}"
    start = 0 if trains_trunk or config.trunk_is_adapted else unit.first
    return StackPhase(what, num_epochs, frozenset(names), True, unit, start, unit.last, time_step)


def weight_names(rack: Rack, first: int, last: int) -> list[str]:
    """Return the names of the parameters of layers [first, last), without low-rank matrices."""
    return [name for name, _ in rack.parameters_of(first, last) if ADAPTERS not in name]


def decoder_names(rack: Rack, unit: Unit) -> list[str]:
    """Return the names of the parameters of a unit's feature decoder, if it has one."""
    prefix = f"{TRAINING_ONLY}.{unit.index}."
    return [name for name, _ in rack.model.named_parameters() if name.startswith(prefix)]


def adapter_names(rack: Rack, first: int, last: int, keys: Sequence[str]) -> list[str]:
    """Return the names of the low-rank matrices of layers [first, last) with one of these keys."""
    named = [name for name, _ in rack.parameters_of(first, last) if ADAPTERS in name]
    return [name for name in named if name.split(".")[-2] in keys]


def adapter_pairs(config: TrainingConfig, plan: StackPlan, unit: Unit) -> list[str]:
    """Return the keys of the low-rank pairs that a unit has.

    The pair "0" trains instead of the unit's weights. The other pairs train in later phases, when
    the unit is below the one that trains.
    """
    keys = []
    is_new_quantized = config.progressive.new_stack_precision == "nf_fp8"
    if is_new_quantized if plan.is_sequential else config.qlora_enabled:
        keys.append(OWN)
    later = len(plan.units) - 1 - unit.index
    if config.trunk_is_adapted and later:
        keys += [str(1 + number) for number in range(later if config.trunk_is_adapted_again else 1)]
    return keys


def trains_head(config: TrainingConfig, unit: Unit, units: Sequence[Unit]) -> bool:
    """Return whether the final norm and an untied head train with a unit."""
    if config.trunk_trains:
        return True
    first = units[-1] if config.local_loss == "reconstruct" else units[0]
    return unit == first  # with feature reconstruction, the loss reaches only the top unit


def time_steps_of(config: TrainingConfig, index: int, num_units: int) -> list[int | None]:
    """Return the time step of each phase of a unit, in order; [None] if examples draw their own
    time steps.

    With `time_interpretation` "depth", each unit has one time step, from the first bin to the last.
    With "input" and a cache, each unit trains with all time steps, one after another.
    """
    if not config.time_step_masking:
        return [None]
    bins = sorted(config.time_step_bins or range(config.num_time_steps))
    if config.time_interpretation == "depth":
        return [bins[round(index * (len(bins) - 1) / max(1, num_units - 1))]]
    return list(bins) if config.cache_activations else [None]
