"""The costs of each phase of a block-wise run, which are estimated before the first step.

The costs are the trained layers, the time, and the memory of weights, gradients and optimizer.

Memory is counted, not measured: the bytes of each weight in its storage format, the gradients of
the trainable weights, and the optimizer state (from a sample optimizer). Activations come on top;
the forecast measures them. The time of a phase follows from a step measured in any phase: layers
with only a forward pass count one matrix product, frozen layers that pass on gradients two, and
trainable layers three. If weights train in fp32 while the others are in bf16, they need no separate
master copies.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.messages import phrase
from infrastructure.features.stackwise.training.layer_forms import AS_LOADED, LayerForm, forms_of
from infrastructure.features.stackwise.training.plain_weights import plain_tensors
from infrastructure.features.stackwise.training.quantized_trunk import (
    QuantizedWeight,
    quantized_bytes,
)
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import (
    ADAPTERS,
    RACKWISE,
    STACKWISE,
    StackPhase,
    StackPlan,
    caches_trunk,
)
from infrastructure.models.model_inputs import LanguageModel, inner_model, language_model
from infrastructure.models.saving import TRAINING_ONLY
from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration, format_share
from infrastructure.monitoring.drawing.tables import render_table
from infrastructure.optimization.optimizer_memory import (
    CreateOptimizer,
    NamedParameters,
    optimizer_state_bytes,
)

LAYERS, LOW_RANK, DECODER = "layers", "low-rank matrices", "feature decoder"
WORDS_OF_FORMS = {
    "nf_fp8": "8 bits (fp8)",
    "fp16": "16 bits",
    "fp32": "32 bits",
}
TRAINING_PARTS = (LOW_RANK, DECODER)  # not part of the final model
EMBEDDING, NORM, HEAD = "embedding", "final norm", "head"
TIED_EMBEDDING = "embedding (tied: also the head)"

SHOWN_FIRST, SHOWN_LAST = 4, 3  # phases in the table; the others are left out
SAMPLE_ROWS = 64  # rows of a matrix that are quantized to measure their size

Span = list[int]  # layers [first, end)


@dataclass(frozen=True)
class Weight:
    """A parameter of the model, as it was loaded.

    Attributes:
        part: the part of the model that contains it, such as "layers" or "embedding".
        layer: index of its layer, from 0; None: outside the layers.
    """

    name: str
    part: str
    shape: torch.Size
    dtype: torch.dtype
    layer: int | None = None

    @property
    def count(self) -> int:
        return self.shape.numel()


@dataclass(frozen=True)
class PhaseCosts:
    """The costs of one phase of a block-wise run.

    Attributes:
        trains: spans of layers whose weights train.
        adapts: spans of layers with low-rank matrices that train.
        start, depth: the first layer with gradients; the number of layers that run.
        parameters: numbers of trainable parameters, by part of the model.
        step_work: multiplications per token in a step, averaged over the phase.
        kept_values: approximate number of values per token that the layers keep for the backward
            pass.
    """

    name: str
    num_epochs: int
    num_steps: int
    trains: list[Span]
    adapts: list[Span]
    start: int
    depth: int
    time_step: int | None
    parameters: dict[str, int]
    weights_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    step_work: float = 1.0
    kept_values: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())


@dataclass(frozen=True)
class PlanCosts:
    """The costs of a block-wise run.

    Attributes:
        stacks: the spans of layers.
        parameters: numbers of the model's parameters, by part.
        cache_bytes: upper bound of cached activations on the disk; None: none are cached.
        finished_as: the storage format of finished layers (`training.quantization_type`); None: the
            same as during training.
    """

    kind: str
    stacks: list[Span]
    parameters: dict[str, int]
    phases: list[PhaseCosts] = field(default_factory=list)
    cache_bytes: int | None = None
    finished_as: str | None = None

    @property
    def num_layers(self) -> int:
        return self.stacks[-1][1]

    def index_at(self, step: int) -> int:
        """Return the index of the phase that trains after `step` steps."""
        for index, phase in enumerate(self.phases):
            if step < phase.num_steps:
                return index
            step -= phase.num_steps
        return len(self.phases) - 1

    def seconds_of_phases(self, measured: int, step_seconds: float) -> list[float]:
        """Estimate the seconds of each phase from the time of one step in phase `measured`."""
        of_work = step_seconds / self.phases[measured].step_work
        return [of_work * phase.step_work * phase.num_steps for phase in self.phases]

    def seconds_left(self, step: int, measured: int, step_seconds: float) -> float:
        """Estimate the seconds from `step` to the end, from a step's time in phase `measured`."""
        index = self.index_at(step)
        seconds = self.seconds_of_phases(measured, step_seconds)
        done = step - sum(phase.num_steps for phase in self.phases[:index])
        left_of_phase = 1 - done / max(1, self.phases[index].num_steps)
        return seconds[index] * left_of_phase + sum(seconds[index + 1 :])

    def growth_bytes(self, step: int, measured: int, num_tokens: int, value_bytes: int) -> int:
        """Estimate how many more bytes a later phase needs than phase `measured`; may be negative.

        The largest phase from `step` on counts.

        Args:
            num_tokens: tokens of the largest micro-batch.
            value_bytes: bytes of a value that is kept for backward passes.
        """
        size = num_tokens * value_bytes
        taken = [p.total_bytes + size * p.kept_values for p in self.phases]
        return max(taken[self.index_at(step) :]) - taken[measured]

    def lines(self, seconds: Sequence[float] | None = None) -> list[str]:
        """Return the plan as lines to show before the run starts.

        Args:
            seconds: time of each phase, see `seconds_of_phases`.
        """
        headings = ["phase", "parameters that train", "steps", "memory"]
        rows = [_row(number, phase) for number, phase in enumerate(self.phases, 1)]
        if seconds:
            headings.append("time")
            for row, time in zip(rows, seconds, strict=True):
                row.append(f"about {format_duration(time)}")
        if len(rows) > SHOWN_FIRST + SHOWN_LAST:
            rows[SHOWN_FIRST:-SHOWN_LAST] = [["…"] * len(headings)]
        table = render_table(headings, rows, max_cell_width=100).splitlines()
        return [self._heading(), *(f"  {line}" for line in table), *self._notes()]

    def _heading(self) -> str:
        sizes = sorted({end - first for first, end in self.stacks})
        count = len(self.stacks)
        stacks = phrase("stackwise.equal_stacks", num_stacks=count, num_layers=sizes[0])
        if len(sizes) > 1:
            stacks = phrase(
                "stackwise.unequal_stacks",
                num_stacks=count,
                smallest=sizes[0],
                largest=sizes[-1],
            )
        grows = self._grows()
        in_turn = phrase(
            "stackwise.order_growing" if grows else "stackwise.order_one_after_another"
        )
        how = {
            STACKWISE: phrase("stackwise.order_each_on_its_own"),
            RACKWISE: phrase("stackwise.order_one_common_loss"),
        }.get(self.kind, in_turn if len(self.stacks) > 1 else phrase("stackwise.order_as_a_whole"))
        steps = sum(phase.num_steps for phase in self.phases)
        return phrase(
            "stackwise.plan_heading",
            stacks=stacks,
            order=how,
            num_steps=steps,
            num_phases=len(self.phases),
        )

    def _grows(self) -> bool:
        """Return whether lower layers continue to train when layers are added."""
        return len(self.phases) > 1 and self.phases[-1].trains == [[0, self.num_layers]]

    def _notes(self) -> list[str]:
        total = sum(self.parameters.values())
        outside = [
            f"{part} {_count(count)} ({format_share(count / total)})"
            for part, count in self.parameters.items()
            if part not in (LAYERS, *TRAINING_PARTS)
        ]
        most = max(self.phases, key=lambda phase: phase.total_bytes)
        description = phrase(
            "stackwise.memory_parts",
            weights=format_bytes(most.weights_bytes),
            gradients=format_bytes(most.gradient_bytes),
            optimizer=format_bytes(most.optimizer_bytes),
        )
        notes = [
            phrase(
                "stackwise.plan_parameters",
                total=_count(total),
                layers=_count(self.parameters.get(LAYERS, 0)),
                others=", ".join(outside),
            ),
            phrase("stackwise.memory_without_activations", description=description),
        ]
        if self.finished_as is not None:
            form = WORDS_OF_FORMS.get(self.finished_as, self.finished_as)
            notes.append(phrase("stackwise.finished_layers_stored", form=form))
        if self.cache_bytes is not None:
            size = format_bytes(self.cache_bytes)
            notes.append(phrase("stackwise.cached_activations_size", size=size))
        return notes


def plan_costs(
    config: TrainingConfig,
    rack: Rack,
    plan: StackPlan,
    *,
    create_optimizer: CreateOptimizer,
    steps_per_epoch: int,
    total_steps: int,
    loaded_dtype: torch.dtype,
    cache_bytes: int | None = None,
) -> PlanCosts:
    """Compute the costs of a planned run. The model is not changed.

    Args:
        loaded_dtype: type of the layers' weights.
    """
    weights = list(weights_of(rack, loaded_dtype))
    model_parts = (w for w in weights if w.part not in TRAINING_PARTS)
    costs = PlanCosts(
        plan.kind,
        [[unit.first, unit.last] for unit in plan.units],
        _sums(model_parts),
        cache_bytes=cache_bytes,
    )
    buffers_bytes = _buffers_bytes(rack.model)
    states = _OptimizerBytes(create_optimizer, next(rack.model.parameters()).device)
    left, finished_as = total_steps, None
    for phase in plan.phases:
        forms = forms_of(config, plan, phase, len(rack))
        trained = [w for w in weights if phase.parameters is None or w.name in phase.parameters]
        num_steps = min(left, phase.num_epochs * steps_per_epoch)
        left -= num_steps
        if phase.unit is not None and phase.unit.first > 0:
            finished_as = forms[0].stored_as
        costs.phases.append(
            PhaseCosts(
                name=phase.name,
                num_epochs=phase.num_epochs,
                num_steps=num_steps,
                trains=_spans({w.layer for w in trained if w.part == LAYERS}),
                adapts=_spans({w.layer for w in trained if w.part == LOW_RANK}),
                start=phase.start,
                depth=phase.depth,
                time_step=phase.time_step,
                parameters=_sums(trained),
                weights_bytes=buffers_bytes + sum(_stored_bytes(w, forms) for w in weights),
                gradient_bytes=sum(w.count * _dtype_of(w, forms).itemsize for w in trained),
                optimizer_bytes=states.of([(w, _dtype_of(w, forms)) for w in trained]),
                step_work=_step_work(config, plan, phase, weights, trained),
                kept_values=_kept_values(config, rack, phase, weights),
            )
        )
    return replace(costs, finished_as=finished_as)


def _step_work(
    config: TrainingConfig,
    plan: StackPlan,
    phase: StackPhase,
    weights: Iterable[Weight],
    trained: Iterable[Weight],
) -> float:
    """Estimate the multiplications per token in a training step.

    If the output of frozen layers is cached, only their first pass over the data counts.
    """
    by_layer: Counter[int] = Counter()
    head = 0
    for weight in weights:
        if weight.part == LAYERS and weight.layer is not None and len(weight.shape) > 1:
            by_layer[weight.layer] += weight.count
        head += weight.count if weight.part in (HEAD, TIED_EMBEDDING) else 0
    training = {w.layer for w in trained if w.part == LAYERS}
    passes = phase.num_epochs if caches_trunk(config, phase.num_epochs) else 1
    work = 0.0
    for layer in range(phase.depth):
        times = 1 / passes if layer < phase.start else 3 if layer in training else 2
        work += times * by_layer[layer]
    num_heads = len(plan.units) if plan.kind == STACKWISE else 1
    if config.local_loss == "reconstruct":  # only the top has the head's loss
        num_heads = int(plan.kind == STACKWISE or phase.depth == len(by_layer))
    return work + num_heads * head * (
        3 if any(w.part in (HEAD, TIED_EMBEDDING) for w in trained) else 2
    )


def _kept_values(
    config: TrainingConfig, rack: Rack, phase: StackPhase, weights: Iterable[Weight]
) -> int:
    """Estimate the number of values per token that are kept for the backward pass.

    These are inputs and outputs of each matrix product; with gradient checkpointing, only the
    inputs of the layers.
    """
    if config.gradient_checkpointing:
        return (phase.depth - phase.start) * (rack.hidden_size or 0)
    return sum(
        sum(w.shape[-2:])
        for w in weights
        if w.part == LAYERS
        and w.layer is not None
        and phase.start <= w.layer < phase.depth
        and len(w.shape) > 1
    )


def weights_of(rack: Rack, loaded_dtype: torch.dtype) -> Iterator[Weight]:
    """Yield all parameters of a model as they were loaded, in whatever format they are now."""
    inner = inner_model(rack.model)
    prefix = next(name for name, module in rack.model.named_modules() if module is inner)
    for index, layer in enumerate(rack.layers):
        buffers = dict(layer.named_buffers())
        for name, tensor in plain_tensors(layer):
            if name not in buffers:
                full = f"{rack.path}.{index}.{name}"
                yield Weight(full, LAYERS, tensor.shape, loaded_dtype, index)
        for name, parameter in layer.named_parameters():
            if ADAPTERS in name:
                full = f"{rack.path}.{index}.{name}"
                yield Weight(full, LOW_RANK, parameter.shape, parameter.dtype, index)
    head = _modules_with_matrices(rack)
    embedding = TIED_EMBEDDING if _is_tied(language_model(inner)) else EMBEDDING
    for name, tensor in plain_tensors(inner, f"{prefix}." if prefix else "", rack.layers):
        if name in rack.below:
            part = embedding if tensor.ndim >= 2 else NORM
        elif name in rack.above:
            part = HEAD if name.rpartition(".")[0] in head else NORM
        else:  # a buffer, or another name of the same weight
            continue
        yield Weight(name, part, tensor.shape, tensor.dtype)
    for name, parameter in rack.model.named_parameters():
        if name.startswith(f"{TRAINING_ONLY}."):
            yield Weight(name, DECODER, parameter.shape, parameter.dtype)


def _modules_with_matrices(rack: Rack) -> set[str]:
    """Return the names of modules above the layers that have a matrix.

    Their biases also count as part of the head.
    """
    named = dict(rack.model.named_parameters())
    return {name.rpartition(".")[0] for name in rack.above if named[name].ndim >= 2}


def _is_tied(model: LanguageModel) -> bool:
    """Return whether the head shares the weights of the embedding."""
    try:
        head = model.get_output_embeddings()
        return head is not None and head.weight is model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):  # not a transformers language model
        return False


def _sums(weights: Iterable[Weight]) -> dict[str, int]:
    """Return the number of parameters of each part of the model."""
    sums: Counter[str] = Counter()
    for weight in weights:
        sums[weight.part] += weight.count
    return dict(sums)


def _form_of(weight: Weight, forms: Sequence[LayerForm]) -> LayerForm:
    is_of_layer = weight.layer is not None and weight.part == LAYERS
    return forms[weight.layer or 0] if is_of_layer else AS_LOADED


def _dtype_of(weight: Weight, forms: Sequence[LayerForm]) -> torch.dtype:
    return _form_of(weight, forms).dtype or weight.dtype


def _stored_bytes(weight: Weight, forms: Sequence[LayerForm]) -> int:
    kind = _form_of(weight, forms).stored_as
    if kind is None or len(weight.shape) != 2:
        return weight.count * _dtype_of(weight, forms).itemsize
    rows, width = weight.shape
    sample_rows = min(rows, SAMPLE_ROWS)
    return quantized_bytes(kind, sample_rows, width) * rows // sample_rows


def _buffers_bytes(model: torch.nn.Module) -> int:
    """Return the total size of buffers in bytes, except those that hold quantized weights."""
    return sum(
        buffer.nbytes
        for module in model.modules()
        if not isinstance(module, QuantizedWeight)
        for _, buffer in module.named_buffers(recurse=False)
    )


class _OptimizerBytes:
    """A measurement of optimizer state sizes, done once for each combination of weight shapes."""

    def __init__(self, create_optimizer: CreateOptimizer, device: torch.device) -> None:
        self._create_optimizer, self._device = create_optimizer, device
        self._known: dict[object, int] = {}

    def of(self, weights: Sequence[tuple[Weight, torch.dtype]]) -> int:
        kinds = Counter((w.shape, dtype, w.part == LOW_RANK) for w, dtype in weights)
        key = frozenset(kinds.items())
        if key not in self._known:
            empty = {
                w.name: torch.empty(1, dtype=dtype, device=self._device).expand(w.shape)
                for w, dtype in weights
            }
            module = NamedParameters({name: torch.nn.Parameter(t) for name, t in empty.items()})
            self._known[key] = optimizer_state_bytes(
                self._create_optimizer, module, self._device.type
            )
        return self._known[key]


def _spans(layers: set[int | None]) -> list[Span]:
    """Merge neighboring layers into spans [first, end)."""
    spans: list[Span] = []
    for layer in sorted(layer for layer in layers if layer is not None):
        if spans and spans[-1][1] == layer:
            spans[-1][1] += 1
        else:
            spans.append([layer, layer + 1])
    return spans


def _row(number: int, phase: PhaseCosts) -> list[str]:
    parts = [part.partition(" (")[0] for part in phase.parameters if part != LAYERS]
    return [
        f"{number}: {', '.join([phase.name, *parts])}",
        _count(phase.num_parameters),
        f"{phase.num_steps:,}",
        format_bytes(phase.total_bytes),
    ]


def _count(number: float) -> str:
    """Format a number: 12,345; 1.23 M; 8.03 B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,.0f}"
