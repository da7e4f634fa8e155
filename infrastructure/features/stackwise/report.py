"""The report's section on block-wise training: the trained layers and the loss of each phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.downsampling import Points
from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_bytes,
    format_number,
    format_share,
)
from infrastructure.monitoring.drawing.html import Markup, element, table
from infrastructure.monitoring.records.run_view import RunView, list_of, mapping_of
from infrastructure.monitoring.report.report_sections import NOTHING, section

STACKWISE_FILE = "stackwise.json"  # the plan, and the step at which each phase began
MAX_ROWS, MAX_OPEN_ROWS = 100, 8
MAX_LAYERS, MAX_PHASES = 1000, 1000
BYTES = ("weights_bytes", "gradient_bytes", "optimizer_bytes")
COLUMNS = ("phase", "parameters", "steps", "loss", "held-out loss", "memory without activations")
ORDERS = {
    "stackwise": "stackwise.order_stackwise",
    "rackwise": "stackwise.order_rackwise",
    "sequential": "stackwise.order_sequential",
}

Plan = dict[str, object]
Span = tuple[int, int]  # of layers, from 0: first and end (exclusive)


@dataclass
class PhaseView:
    """One phase of the plan, with its steps after `start` (planned or actual) and its
    measurements.
    """

    plan: Plan
    start: int
    end: int
    losses: Points = field(default_factory=list)
    held_out: Points = field(default_factory=list)


def stack_section(view: RunView) -> Markup:
    """Return the report's section on block-wise training, which is empty for other training."""
    plan, phases = stacks_of(view)
    if not phases:
        return NOTHING
    return section(
        "Block-wise training", element("p", _lead(plan), css_class="soft"), _table(phases)
    )


def _order(kind: str) -> str:
    return phrase(ORDERS[kind]) if kind in ORDERS else ""


def stacks_of(view: RunView) -> tuple[Plan, list[PhaseView]]:
    """Return the recorded plan of a block-wise run, and its phases.

    Both are empty if no plan is recorded.
    """
    record = view["of_features"][STACKWISE_FILE]
    plan = mapping_of(record.get("plan"))
    if not 0 < _layers_of(plan) <= MAX_LAYERS:
        return {}, []
    began = {
        _whole(one.get("phase")): _whole(one.get("step"))
        for one in map(mapping_of, list_of(record.get("began")))
    }
    phases: list[PhaseView] = []
    for index, one in enumerate(map(mapping_of, list_of(plan.get("phases"))[:MAX_PHASES])):
        start = began.get(index, phases[-1].end if phases else 0)
        if phases:
            phases[-1].end = start
        phases.append(PhaseView(one, start, start + _whole(one.get("num_steps"))))
    for index, phase in enumerate(phases):
        if index in began:
            curves = view["curves"]
            phase.losses = _between(curves.get("loss", []), phase.start, phase.end)
            phase.held_out = _between(curves.get("eval_loss", []), phase.start, phase.end)
    return plan, [phase for phase in phases if phase.start < phase.end]


def _between(points: Points, first: float, last: float) -> Points:
    return [(step, value) for step, value in points if first < step <= last]


def _lead(plan: Mapping[str, object]) -> str:
    stacks = len(list_of(plan.get("stacks")))
    description = phrase("stackwise.model_grows") if _grows(plan) else _order(str(plan.get("kind")))
    parts = {str(k): _whole(v) for k, v in mapping_of(plan.get("parameters")).items()}
    total = sum(parts.values()) or 1
    named = [f"{clip(part, 60)} {format_share(count / total)}" for part, count in parts.items()]
    shape = phrase("stackwise.stacks_and_layers", stacks=stacks, layers=_layers_of(plan))
    return f"{shape} {description} Of {total:,} parameters: " + ", ".join(named) + "."


def _grows(plan: Mapping[str, object]) -> bool:
    phases = list_of(plan.get("phases"))
    all_layers = [[0, _layers_of(plan)]]
    return len(phases) > 1 and mapping_of(phases[-1]).get("trains") == all_layers


def _table(phases: list[PhaseView]) -> Markup:
    """Return a table of the phases, with the parameters that train and the losses."""
    rows = [
        (
            f"{number}: {clip(str(phase.plan.get('name', '')), 120)}",
            f"{sum(map(_whole, mapping_of(phase.plan.get('parameters')).values())):,}",
            f"{phase.start + 1:,} to {phase.end:,}",
            _from_to([value for _, value in phase.losses]),
            _from_to([value for _, value in phase.held_out]),
            format_bytes(sum(_whole(phase.plan.get(key)) for key in BYTES)),
        )
        for number, phase in enumerate(phases[:MAX_ROWS], 1)
    ]
    shown = table(COLUMNS, rows, "numbers phases")
    if len(rows) <= MAX_OPEN_ROWS:
        return shown
    return element("details", element("summary", f"All {len(phases)} phases"), shown)


def _from_to(values: list[float]) -> str:
    if not values:
        return ""
    return format_number(values[0]) + (f" → {format_number(values[-1])}" if len(values) > 1 else "")


def _layers_of(plan: Mapping[str, object]) -> int:
    stacks = _spans(plan.get("stacks"))
    return max((end for _, end in stacks), default=0)


def _spans(value: object) -> list[Span]:
    """Return the valid spans of layers in a value from a file.

    The file may be damaged or come from a later version.
    """
    return [
        (one[0], one[1])
        for one in list_of(value)
        if isinstance(one, list)
        and len(one) == 2
        and all(type(n) is int for n in one)
        and 0 <= one[0] < one[1] <= MAX_LAYERS
    ]


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
