import pytest
import torch

from infrastructure.optimization.compiling import (
    CompileDecision,
    decide_compiling,
    is_compiled,
    set_compiled,
)

CPU = torch.device("cpu")


class Machine:
    """A model whose steps take set times; compiling happens in the first compiled step."""

    def __init__(self, eager: float, compiled: float, compiling: float) -> None:
        self.times = {False: eager, True: compiled}
        self.compiling = compiling
        self.is_compiled = False
        self.now = 0.0

    def set_compiled(self, is_on: bool) -> None:
        self.is_compiled = is_on

    def run_step(self, number: int) -> None:
        if self.is_compiled:
            self.now += self.compiling
            self.compiling = 0.0
        self.now += self.times[self.is_compiled]

    def decide(self, steps_left: int) -> CompileDecision:
        return decide_compiling(
            self.run_step,
            self.set_compiled,
            steps_left=steps_left,
            device=CPU,
            clock=lambda: self.now,
        )


def test_compiling_is_kept_where_it_pays_back_inside_the_run() -> None:
    machine = Machine(eager=1.0, compiled=0.5, compiling=60.0)
    decision = machine.decide(steps_left=1000)
    assert decision.pays
    assert machine.is_compiled
    assert decision.compile_seconds == pytest.approx(60.0)
    assert decision.saved_seconds == pytest.approx(0.5 * 1000 - 60)
    assert str(decision).startswith("optimization.compile_kept(timing=optimization.compile_timing(")
    assert "eager_seconds=1.0, compiled_seconds=0.5, compile_seconds=60.0" in str(decision)


@pytest.mark.parametrize(
    ("compiled", "steps_left"), [(0.5, 100), (1.0, 10**6), (1.5, 10**6), (0.91, 10**6)]
)
def test_it_is_taken_back_where_the_run_is_short_or_nothing_is_gained(
    compiled: float, steps_left: int
) -> None:
    machine = Machine(eager=1.0, compiled=compiled, compiling=60.0)
    decision = machine.decide(steps_left)
    assert not decision.pays
    assert not machine.is_compiled
    assert "compile_not_kept" in str(decision)


def test_a_compiler_that_fails_leaves_the_model_as_it_was() -> None:
    machine = Machine(1.0, 0.5, 0.0)
    whole_step = machine.run_step

    def run_step(number: int) -> None:
        if machine.is_compiled:
            raise RuntimeError("no compiler\nwith a long story")
        whole_step(number)

    machine.run_step = run_step  # type: ignore[method-assign]
    decision = machine.decide(1000)
    assert not machine.is_compiled
    assert not decision.pays
    assert str(decision) == "optimization.compile_not_used(reason=RuntimeError: no compiler)"


def test_a_real_module_is_compiled_in_place_and_back() -> None:
    module = torch.nn.Linear(4, 4)
    inputs = torch.ones(2, 4)
    expected = module(inputs)
    set_compiled(module, True)
    assert module._compiled_call_impl is not None
    assert is_compiled(torch.nn.Sequential(module))
    set_compiled(module, False)
    assert module._compiled_call_impl is None
    assert not is_compiled(torch.nn.Sequential(module))
    assert torch.equal(module(inputs), expected)
