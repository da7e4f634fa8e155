"""Where the time of one of Temper's steps goes on a CPU, by what kind of work it is.

    python -m benchmarks.step_profile --data gsm8k/train.jsonl [--scenario all] [--steps 8]
    python -m benchmarks.step_profile --quickstart --warmup 60 --steps 40

PyTorch's profiler watches some steps of the same training that `benchmarks.throughput` measures,
or of the quickstart: sample tasks and the embedded model.
Each operation counts with its own time, without that of the operations that it calls. What no
operation has is Python and the profiler itself: the same steps are timed without it, too. Prints a
table, and the operations that take the most time.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.machine import environment, publish, sentence, table
from benchmarks.throughput.systems import be_quiet, measured_temper
from benchmarks.throughput.workbench import SCENARIOS, prepare
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.defaults import make_ready
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from infrastructure.training.setup.compute_choice import choose_by_product, choose_by_trial

# An operation is of the first kind that a part of its name, or of a caller's name, says.
INSIDE = {
    "attention": ("ShortAttention", "scaled_dot_product"),
    "optimizer": ("Optimizer.step", "Optimizer.zero_grad"),
}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmm_", "4bit")
CONVERSIONS = ("aten::copy_", "aten::_to_copy", "aten::to")
LOSS = ("LinearCrossEntropy", "softmax", "nll_loss", "cross_entropy")
KINDS = (
    "products",
    "attention",
    "conversions and copies",
    "loss, but for its products",
    "norms and pointwise",
    "optimizer and clipping",
    "embedding, concatenation, zeroing",
    "Python, and what is between operations",
)
POINTWISE = ("mul", "add", "sub", "div", "silu", "sigmoid", "rsqrt", "mean", "pow", "sum", "neg")
FOREACH = ("_foreach", "_fused", "linalg", "clip", "norm")
NUM_LISTED = 12

MakeTrainer = Callable[[int, list[Hook]], EnhancedTrainer]  # of so many steps


@dataclass
class ProfiledSteps(Observer):
    """Times some steps, then profiles as many.

    Attributes:
        seconds: of the steps without the profiler, and with it.
        precision: what they are computed in.
    """

    num_warmup: int
    num_steps: int
    profiler: Any = None
    precision: str = ""
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    _steps_done: int = 0
    _started: float = 0.0

    def step_end(self, state: TrainingState) -> None:
        now = perf_counter()
        if self._steps_done > self.num_warmup:
            self.seconds[self.profiler is not None].append(now - self._started)
        self._steps_done += 1
        if self._steps_done == self.num_warmup + self.num_steps + 1:
            self.profiler = profile(activities=[ProfilerActivity.CPU])
            self.profiler.start()
        self._started = perf_counter()

    def train_end(self, state: TrainingState) -> None:
        self.profiler.stop()


def kind_of(event: Any) -> str:
    """What kind of work an operation is."""
    callers = list(names_up(event))
    name = callers[0]
    if is_any(INSIDE["attention"], callers):
        return "attention"
    if is_any(INSIDE["optimizer"], callers) or is_any(FOREACH, callers):
        return "optimizer and clipping"
    if is_any(PRODUCTS, [name]):
        return "products"
    if is_any(LOSS, callers):
        return "loss, but for its products"
    if name in CONVERSIONS:
        return "conversions and copies"
    if is_any(POINTWISE, [name]):
        return "norms and pointwise"
    return "embedding, concatenation, zeroing"


def names_up(event: Any) -> Iterator[str]:
    while event is not None:
        yield event.name
        event = event.cpu_parent


def is_any(parts: Iterable[str], names: Iterable[str]) -> bool:
    return any(part in name for name in names for part in parts)


def quickstart_trainer(num_steps: int, hooks: list[Hook]) -> EnhancedTrainer:
    """As `temper train` trains where nothing is said: with as many threads, in that format."""
    config = DeploymentConfig(device="cpu")
    make_ready(config)
    whole = EnhancedTrainer(config.model, config.training, config.data, device="cpu")
    choose_by_product(whole)
    choose_by_trial(whole)
    few = config.training.copy_with(max_steps=num_steps, num_epochs="auto")
    trainer = EnhancedTrainer(config.model, few, config.data, device="cpu", hooks=hooks)
    trainer.use_precision(whole.precision.name)
    return trainer


def steps_by_kind(
    make_trainer: MakeTrainer, num_warmup: int, num_steps: int
) -> tuple[ProfiledSteps, Counter[str], Counter[tuple[str, str]]]:
    """The steps, and the milliseconds of one by kind, and by kind and operation."""
    steps = ProfiledSteps(num_warmup, num_steps)
    # one step more than is profiled: what comes after the last step is not of it
    trainer = make_trainer(num_warmup + 2 * num_steps + 1, [steps])
    steps.precision = trainer.precision.name
    trainer.train()
    kinds: Counter[str] = Counter()
    operations: Counter[tuple[str, str]] = Counter()
    for event in steps.profiler.events():
        kind, time = kind_of(event), event.self_cpu_time_total / 1000 / num_steps
        kinds[kind] += time
        operations[kind, event.name] += time
    profiled = 1000 * sum(steps.seconds[True]) / num_steps
    kinds[KINDS[-1]] = max(0.0, profiled - sum(kinds.values()))
    return steps, kinds, operations


def page(title: str, flags: str, make_trainer: MakeTrainer, num_warmup: int, num_steps: int) -> str:
    """`flags` chose what is profiled."""
    steps, kinds, operations = steps_by_kind(make_trainer, num_warmup, num_steps)
    total = sum(kinds.values())
    alone, watched = (1000 * median(steps.seconds[is_on]) for is_on in (False, True))
    by_kind = [(kind, f"{kinds[kind]:.0f}", f"{kinds[kind] / total:.0%}") for kind in KINDS]
    listed = [
        (f"`{name}`", kind, f"{time:.0f}")
        for (kind, name), time in operations.most_common(NUM_LISTED)
    ]
    return (
        f"# Where the time of a step goes: {title}\n\n"
        f"`python -m benchmarks.step_profile {flags}`: a step of Temper in {steps.precision} took"
        f" {alone:.0f} ms in the middle, and {watched:.0f} ms with PyTorch's profiler, whose times"
        f" these are, over {num_steps} steps. {sentence(environment())}\n\n"
        f"{table(('kind of work', 'ms of a step', 'share'), by_kind)}\n"
        f"{table(('operation', 'kind', 'ms of a step'), listed)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, help="GSM8K's train.jsonl")
    parser.add_argument("--quickstart", action="store_true", help="profile that, without --data")
    parser.add_argument("--scenario", choices=list(SCENARIOS), default="all")
    parser.add_argument("--steps", type=int, default=8, help="profiled; default 8")
    parser.add_argument("--warmup", type=int, default=8, help="steps before them; default 8")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    if (arguments.data is None) is not arguments.quickstart:
        parser.error("give --data with GSM8K's train.jsonl, or --quickstart")
    be_quiet()
    num_steps = arguments.warmup + 2 * arguments.steps + 1
    with (
        tempfile.TemporaryDirectory() as name,
        redirect_stdout(sys.stderr),
        chdir(name) if arguments.quickstart else nullcontext(),
    ):
        chosen = "the quickstart", "--quickstart", quickstart_trainer
        if not arguments.quickstart:
            scenario = SCENARIOS[arguments.scenario]
            workbench = prepare(scenario, arguments.data, num_steps, Path(name))
            flags = f"--data gsm8k/train.jsonl --scenario {arguments.scenario}"
            chosen = scenario.title, flags, partial(measured_temper(workbench).trainer, workbench)
        made = page(*chosen, arguments.warmup, arguments.steps)
    publish(made, arguments.write)


if __name__ == "__main__":
    main()
