"""A scenario measured: all systems and the ruler by turns, and what their steps say."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.throughput.products import step_products
from benchmarks.throughput.systems import (
    Temper,
    be_quiet,
    crude_loss,
    measured_temper,
    systems_of,
    train,
)
from benchmarks.throughput.workbench import Row, Workbench
from benchmarks.turns import Clock, System, Turns, interval, take_turns
from infrastructure.data.serving.collate import pack
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.packing_check import prepare_packing
from infrastructure.models.quantization import keep_trainable_layout
from infrastructure.models.token_loss import TokenLoss
from infrastructure.optimization.gpu_capability import cpu_has_bf16
from infrastructure.optimization.size_grid import SizeGrid

PRECISIONS = ("fp32", "bf16")
# Relative. In bf16 each number is rounded to a few thousandths, by either in other places.
MOST_DIFFERENCE = {
    "fp32": {"loss": 1e-6, "gradients": 1e-5},
    "bf16": {"loss": 1e-3, "gradients": 2e-2},
}


def measure(workbench: Workbench, num_warmup: int, num_steps: int) -> dict[str, Any]:
    """Speeds, shares of what the products allow, and Temper's leads; see `summarise`."""
    systems = systems_of(workbench.scenario, cpu_has_bf16(), temper_as_chosen(workbench))
    steps = num_warmup + num_steps
    products = step_products(workbench, steps)
    runs: dict[str, System] = {
        name: partial(train, system, workbench, steps) for name, system in systems.items()
    }
    formats = {name: system.precision for name, system in systems.items()}
    for precision in used(formats):
        runs[f"products_{precision}"] = partial(products.train, precision, steps)
    turns = take_turns(runs, steps, workbench.scenario.title)
    return {
        "title": workbench.scenario.title,
        "warmup_steps": num_warmup,
        "steps": num_steps,
        "tokens_per_step": products.num_tokens,
        "gflop_of_products_per_step": round(products.flops / 1e9, 1),
        "gflop_per_second": gflop_rates(turns, products.flops, num_warmup, used(formats)),
        **summarise(turns, formats, num_warmup),
    }


def temper_as_chosen(workbench: Workbench) -> Temper:
    """Temper as it computes on this machine, measured in a process of its own."""
    title = f"{workbench.scenario.title}, how to compute"
    turns = take_turns({"temper": partial(choose, workbench)}, 0, title)
    chosen: Temper = turns["temper"].result
    return chosen


def choose(workbench: Workbench, _clock: Clock) -> Temper:
    be_quiet()
    return measured_temper(workbench)


def used(formats: dict[str, str]) -> list[str]:
    """The formats that some system computes in."""
    return [precision for precision in PRECISIONS if precision in formats.values()]


def gflop_rates(
    turns: dict[str, Turns], flops: int, num_warmup: int, precisions: Sequence[str]
) -> dict[str, int]:
    """How fast the products of a step are, by format."""
    return {
        precision: round(flops / 1e9 / median(turns[f"products_{precision}"].seconds[num_warmup:]))
        for precision in precisions
    }


def summarise(turns: dict[str, Turns], formats: dict[str, str], num_warmup: int) -> dict[str, Any]:
    """Of each system: tokens per second, its share of what the products of its format allow, the
    most memory of its process, and how many times as fast as it Temper is. Share and times are of
    neighbouring steps, with intervals.
    """
    speeds = {name: system.speeds[num_warmup:] for name, system in turns.items()}
    systems = {}
    for name, precision in formats.items():
        limit = speeds[f"products_{precision}"]
        systems[name] = {
            "precision": precision,
            "tokens_per_second": round(median(speeds[name])),
            "share_of_products": ratio(speeds[name], limit),
            "peak_bytes": turns[name].peak_bytes,
        }
        if name != "temper":
            systems[name]["temper_times"] = ratio(speeds["temper"], speeds[name])
    limits = {p: round(median(speeds[f"products_{p}"])) for p in used(formats)}
    return {"systems": systems, "tokens_per_second_of_products": limits}


def ratio(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """The median of the ratios of neighbouring steps, and its 95% interval."""
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    return [round(value, 3) for value in (median(ratios), *interval(ratios, median))]


def differences(workbench: Workbench) -> dict[str, dict[str, float]]:
    """How far Temper's loss and gradients of one batch are from the plain loop's, by format."""
    return {precision: difference(workbench, precision) for precision in PRECISIONS}


def difference(workbench: Workbench, precision: str) -> dict[str, float]:
    """Relative: of the loss, and of all gradients together, by their norm."""
    half = precision == "bf16"
    examples = workbench.batch(0)
    plain, ours = (drawn_model(workbench, half) for _ in range(2))
    keep_trainable_layout(ours)  # as Temper's loading does
    prepare_packing(ours)
    grid = SizeGrid.EIGHTHS if half else SizeGrid.EXACT
    batch = pack([tokenized(row) for row in examples], grid)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        expected = crude_loss(plain, examples)
        loss_sum, num_items = TokenLoss()(ours, batch, grid)
    loss = loss_sum / num_items
    expected.backward()
    loss.backward()
    wanted, measured = (gradients(model) for model in (plain, ours))
    return {
        "loss": abs(loss.item() / expected.item() - 1.0),
        "gradients": float((measured - wanted).norm() / wanted.norm()),
    }


def drawn_model(workbench: Workbench, half: bool) -> Any:
    """Always the same. LoRA's matrices are drawn: new ones are zeros, and hide what is wrong."""
    model = workbench.create_model(torch.bfloat16 if half else torch.float32)
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.02)
    return model


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """Of all weights that train, in one tensor."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in trained]
    return torch.cat([part.flatten() for part in parts])


def tokenized(row: Row) -> TokenizedExample:
    labels = np.array(row["labels"])
    return TokenizedExample(np.array(row["input_ids"], dtype=np.int32), labels != -100)


def is_right(measured: dict[str, dict[str, float]]) -> bool:
    return all(
        measured[precision][what] <= most
        for precision, limits in MOST_DIFFERENCE.items()
        for what, most in limits.items()
    )


def measure_compiled(workbench: Workbench, num_steps: int) -> dict[str, Any]:
    """What torch.compile gives once it is done (second half), and what it takes until then."""
    temper = temper_as_chosen(workbench)
    systems = {"temper": temper, "compiled": replace(temper, compile_mode="default")}
    runs = {name: partial(train, system, workbench, num_steps) for name, system in systems.items()}
    turns = take_turns(runs, num_steps, "compiled")
    half = num_steps // 2
    speeds = {name: median(system.speeds[half:]) for name, system in turns.items()}
    lost = sum(turns["compiled"].seconds[:half]) - sum(turns["temper"].seconds[:half])
    saved_per_token = 1 / speeds["temper"] - 1 / speeds["compiled"]
    return {
        "tokens_per_second": {name: round(speed) for name, speed in speeds.items()},
        "seconds_lost_at_first": round(lost, 1),
        "tokens_to_pay_back": round(lost / saved_per_token) if saved_per_token > 0 else None,
    }
