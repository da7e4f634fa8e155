"""torch.compile, used only if a measurement shows that it saves time within the run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from infrastructure.core.messages import phrase

TIMED_STEPS = 3
LEAST_GAIN = 0.1  # a smaller one may be chance; without it, similar runs compute alike


@dataclass(frozen=True)
class CompileDecision:
    """The decision whether to compile a model, with the measurements behind it.

    Attributes:
        eager_seconds, compiled_seconds: the median time of one step without and with compiling;
            compiled_seconds is None if compiling failed.
        compile_seconds: the additional time of the first compiled steps.
        steps_left: the number of remaining steps of the run.
        reason: why compiling was not possible; "" if it was.
    """

    eager_seconds: float
    compiled_seconds: float | None
    compile_seconds: float
    steps_left: int
    reason: str = ""

    @property
    def saved_seconds(self) -> float:
        """The time saved over the rest of the run, minus the time to compile; may be negative."""
        if self.compiled_seconds is None:
            return 0.0
        gain = self.eager_seconds - self.compiled_seconds
        return gain * self.steps_left - self.compile_seconds

    @property
    def pays(self) -> bool:
        """True if compiling makes the rest of the run shorter."""
        if self.compiled_seconds is None:
            return False
        is_faster = self.compiled_seconds < (1 - LEAST_GAIN) * self.eager_seconds
        return is_faster and self.saved_seconds > 0

    def __str__(self) -> str:
        if self.compiled_seconds is None:
            return phrase("optimization.compile_not_used", reason=self.reason)
        text = phrase(
            "optimization.compile_timing",
            eager_seconds=self.eager_seconds,
            compiled_seconds=self.compiled_seconds,
            compile_seconds=self.compile_seconds,
            steps_left=self.steps_left,
        )
        code = "optimization.compile_kept" if self.pays else "optimization.compile_not_kept"
        return phrase(code, timing=text)


def decide_compiling(
    run_step: Callable[[int], None],
    set_compiled: Callable[[bool], None],
    *,
    steps_left: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> CompileDecision:
    """Time a few steps without and with torch.compile, and leave the model in the better state.

    Args:
        run_step: does the work of one step, forward and backward, on batch number 0, 1, … It must
            leave weights and random state unchanged.
        set_compiled: switches compiling on or off.
        steps_left: the number of remaining steps of the run.

    Returns:
        The decision, which is already applied.
    """

    def timed(number: int) -> float:
        started = clock()
        run_step(number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock() - started

    timed(0)  # the first one loads kernels
    eager = median(timed(number) for number in range(TIMED_STEPS))
    set_compiled(True)
    try:
        # twice: the second sequence length may trigger one more compilation, for all lengths
        first = sum(timed(number) for number in range(TIMED_STEPS))
        compiled = median(timed(number) for number in range(TIMED_STEPS))
    except Exception as error:  # a compiler fails in many ways, and none is worth the run
        set_compiled(False)
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return CompileDecision(eager, None, 0.0, steps_left, reason)
    spent = max(0.0, first - TIMED_STEPS * compiled)
    decision = CompileDecision(eager, compiled, spent, steps_left)
    set_compiled(decision.pays)
    return decision


def set_compiled(model: torch.nn.Module, is_on: bool, mode: str = "default") -> None:
    """Compile a module in place with torch.compile, for all sequence lengths, or undo this."""
    if is_on:
        model.compile(mode=mode, dynamic=True)
    else:
        model._compiled_call_impl = None


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether `set_compiled` has compiled the module, or a module inside it."""
    return any(module._compiled_call_impl is not None for module in model.modules())
