"""The report's section on block-wise training: the trained layers and the loss of each phase."""

import math
import re
from collections.abc import Mapping
from itertools import pairwise

from infrastructure.core.messages import phrase
from infrastructure.features.stackwise.plots import Bar, Span, StackPicture
from infrastructure.monitoring.drawing.curves import PointsByKey
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
NARROW, WIDE = 440, 980
MAX_ROWS, MAX_OPEN_ROWS = 100, 8
MAX_LAYERS, MAX_PHASES = 1000, 1000
BYTES = ("weights_bytes", "gradient_bytes", "optimizer_bytes")
COLUMNS = ("phase", "parameters", "steps", "loss", "held-out loss", "memory without activations")
NO_MARK = "key none"
ORDERS = {
    "stackwise": "stackwise.order_stackwise",
    "rackwise": "stackwise.order_rackwise",
    "sequential": "stackwise.order_sequential",
}


Plan = dict[str, object]


def stack_section(view: RunView) -> Markup:
    """Return the report's section on block-wise training, which is empty for other training."""
    plan, phases = stacks_of(view)
    if not phases:
        return NOTHING
    layers, bars = _layers_of(plan), [bar for _, bar in phases]
    above = "norm, head" if "head" in mapping_of(plan.get("parameters")) else "final norm"
    pictures = [
        element("div", StackPicture(bars, layers, width, above).render(), css_class=name)
        for name, width in (("wide", WIDE), ("narrow", NARROW))
    ]
    keys = _keys(bars)
    if any("feature decoder" in mapping_of(phase.get("parameters")) for phase, _ in phases):
        keys.append(element("span", phrase("stackwise.feature_loss_legend"), css_class=NO_MARK))
    caption = element("figcaption", *keys)
    return section(
        "Block-wise training",
        element("p", _lead(plan), css_class="soft"),
        element("figure", *pictures, caption),
        _table(phases),
    )


def _order(kind: str) -> str:
    return phrase(ORDERS[kind]) if kind in ORDERS else ""


def stacks_of(view: RunView) -> tuple[Plan, list[tuple[Plan, Bar]]]:
    """Return the recorded plan of a block-wise run, and its phases, each with its bar in the image.

    Both are empty if no plan is recorded.
    """
    record = view["of_features"][STACKWISE_FILE]
    plan = mapping_of(record.get("plan"))
    phases = [mapping_of(phase) for phase in list_of(plan.get("phases"))][:MAX_PHASES]
    if not 0 < _layers_of(plan) <= MAX_LAYERS:
        return {}, []
    began = {
        _whole(one.get("phase")): _whole(one.get("step"))
        for one in map(mapping_of, list_of(record.get("began")))
    }
    starts, end = [], 0
    for index, phase in enumerate(phases):
        starts.append(began.get(index, end))
        end = starts[-1] + _whole(phase.get("num_steps"))
    bars = [
        (phase, _bar(index, phase, steps, index in began, view["curves"]))
        for index, (phase, steps) in enumerate(zip(phases, pairwise([*starts, end]), strict=True))
        if steps[0] < steps[1]
    ]
    return plan, bars


def _bar(
    index: int,
    phase: Mapping[str, object],
    steps: tuple[int, int],
    has_begun: bool,
    points: PointsByKey,
) -> Bar:
    losses = _between(points.get("loss", []), *steps) if has_begun else []
    held_out = _between(points.get("eval_loss", []), *steps) if has_begun else []
    parameters = mapping_of(phase.get("parameters"))
    name = clip(str(phase.get("name", "")), 120)
    description = phrase(
        "stackwise.phase_steps", number=index + 1, name=name, first=steps[0] + 1, last=steps[1]
    )
    finite = [value for _, value in losses if math.isfinite(value)]
    if finite:
        description += f", loss {format_number(finite[-1])}"
    time_step = phase.get("time_step")
    return Bar(
        title=description,
        label=f"{index + 1}" if time_step is None else f"t {_whole(time_step)}",
        first_step=steps[0],
        last_step=steps[1],
        has_begun=has_begun,
        trains=_spans(phase.get("trains")),
        adapts=_spans(phase.get("adapts")),
        depth=min(MAX_LAYERS, _whole(phase.get("depth"))),
        trains_below=any(part.startswith("embedding") for part in parameters),
        trains_above=any(part in ("head", "final norm") for part in parameters),
        losses=losses,
        held_out=held_out,
    )


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


def _keys(bars: list[Bar]) -> list[Markup]:
    keys = [("trained", "key cell")]
    if any(bar.adapts for bar in bars):
        keys.append((phrase("stackwise.low_rank_legend"), "key adapted"))
    keys.append((phrase("stackwise.frozen_legend"), "key frozen"))
    if not all(bar.has_begun for bar in bars):
        keys.append(("pale: planned", NO_MARK))
    if any(bar.label.startswith("t ") for bar in bars):
        keys.append((phrase("stackwise.mask_time_step_legend"), NO_MARK))
    return [element("span", text, css_class=key) for text, key in keys]


def _table(phases: list[tuple[Plan, Bar]]) -> Markup:
    """Build a table of the phases: trained layers, number of weights, first and last loss."""
    rows = [
        (
            _phase_name(bar),
            f"{sum(map(_whole, mapping_of(phase.get('parameters')).values())):,}",
            f"{bar.first_step + 1:,} to {bar.last_step:,}",
            _from_to([value for _, value in bar.losses]),
            _from_to([value for _, value in bar.held_out]),
            format_bytes(sum(_whole(phase.get(key)) for key in BYTES)),
        )
        for phase, bar in phases[:MAX_ROWS]
    ]
    shown = table(COLUMNS, rows, "numbers phases")
    if len(rows) <= MAX_OPEN_ROWS:
        return shown
    return element("details", element("summary", f"All {len(phases)} phases"), shown)


def _phase_name(bar: Bar) -> str:
    return re.sub(r" of \d+(?=,|$)", "", bar.title.partition(", steps ")[0].removeprefix("phase "))


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
