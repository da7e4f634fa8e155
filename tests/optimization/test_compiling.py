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
        self.numbers, self.states = list[int](), list[bool]()
        self.compiling = compiling
        self.is_compiled = False
        self.now = 0.0

    def set_compiled(self, is_on: bool) -> None:
        self.is_compiled = is_on
        self.states.append(is_on)

    def run_step(self, number: int) -> None:
        self.numbers.append(number)
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
    assert (machine.numbers, machine.states) == ([0] + [0, 1, 2] * 3, [True, True])
    timing = "eager_seconds=1.0, compiled_seconds=0.5, compile_seconds=60.0, steps_left=1000"
    timing = f"optimization.compile_timing({timing})"
    assert str(decision) == f"optimization.compile_kept(timing={timing})"


def test_the_median_of_three_steps_counts_and_a_gain_of_a_tenth() -> None:
    seconds = iter([9.0, 1.0, 3.0, 1.2, *(2.0, 2.0, 2.0), 0.5, 1.07, 5.0])
    clock = [0.0]

    def run_step(_: int) -> None:
        clock[0] += next(seconds)

    decision = decide_compiling(
        run_step, lambda _: None, steps_left=100, device=CPU, clock=lambda: clock[0]
    )
    assert (decision.eager_seconds, decision.compiled_seconds) == pytest.approx((1.2, 1.07))
    assert decision.compile_seconds == pytest.approx(6.0 - 3 * 1.07)
    assert decision.saved_seconds == pytest.approx(100 * 0.13 - 2.79)
    assert decision.pays
    assert not CompileDecision(1.2, 1.09, 0.0, 100).pays
    assert not CompileDecision(1.0, 0.5, 50.0, 100).pays, "nothing is saved"
    assert CompileDecision(1.0, None, 0.0, 100).saved_seconds == 0.0


def test_a_module_is_compiled_for_all_lengths_in_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[dict[str, object]] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda _, **options: compiled.append(options))
    set_compiled(torch.nn.Linear(1, 1), True)
    set_compiled(torch.nn.Linear(1, 1), True, "max-autotune")
    modes = ("default", "max-autotune")
    assert compiled == [{"mode": mode, "dynamic": True} for mode in modes]


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
