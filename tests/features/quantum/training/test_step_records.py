"""What is kept of quantum steps, and how it is told."""

import math

import numpy as np

from infrastructure.features.quantum.config import AT_ANY_COST
from infrastructure.features.quantum.solving.quantum_step import Solution
from infrastructure.features.quantum.training.decisions import Decisions, packed, unpacked
from infrastructure.features.quantum.training.overhead_budget import (
    OverheadBudget,
    over_budget,
    solver_seconds,
    too_few_steps,
)
from infrastructure.features.quantum.training.step_records import (
    MAX_RECORDS,
    NUM_WHOLE,
    History,
    answer_facts,
    in_words,
    numbers_of,
)

ANSWER = {
    "problem": "data_selection",
    "outcome": "answered",
    "chosen": "5 of 10 training examples",
    "answered_by": "exact",
    "energy": 0.25,
    "num_variables": 10,
    "seconds": 1.5,
    "alternatives": {"greedy": 0.5},
    "info": {"num_reads": 4},
}


def test_old_records_are_short_and_very_old_ones_gone() -> None:
    history = History()
    for step in range(MAX_RECORDS + 5):
        history.add({**ANSWER, "step": step})
    found = history.records()
    assert [record["step"] for record in found] == list(range(5, MAX_RECORDS + 5))
    assert ["info" in record for record in found[-NUM_WHOLE - 1 :]] == [False] + [True] * NUM_WHOLE
    again = History()
    again.load_state_dict(history.state_dict())
    assert again.records() == found
    assert (len(again), again.newest(), History().newest()) == (MAX_RECORDS, found[-1], None)
    long = {"info": {}, "facts": {}, "dropped": []}
    aged = History()
    kept = [aged.add({**ANSWER, **long, "step": step}) for step in range(NUM_WHOLE + 1)]
    assert kept[0] == {**ANSWER, **long, "step": 0}
    short = {name: value for name, value in kept[0].items() if name not in long}
    assert aged.records() == [short, *kept[1:]]


def test_numbers_and_words() -> None:
    assert numbers_of(ANSWER) == {
        "quantum_problem_size": 10.0,
        "quantum_energy": 0.25,
        "quantum_seconds": 1.5,
        "quantum_reads": 4.0,
    }
    assert numbers_of({"solver_seconds": 1, "energy": None}) == {"quantum_solver_seconds": 1.0}  # type: ignore[typeddict-item]
    assert in_words(ANSWER) == (
        "Quantum step (data selection): 5 of 10 training examples, chosen by exact in 1.5 s"
    )
    skipped = {"problem": "data_selection", "outcome": "skipped", "why": "dear"}
    assert in_words(skipped) == "Quantum step (data selection) skipped: dear"
    equal = {**ANSWER, "energy": 0.5, "remarks": ["cut", "late"]}
    remarks = "; cut; latequantum.simple_rule_chooses_equally_well()"
    assert in_words(equal).endswith(f"chosen by exact in 1.5 s{remarks}")
    some = {**equal, "num_examples": 30, "num_selected": 27, "num_dropped": 3}
    assert in_words(some) == (
        "quantum.redundant_examples_excluded(excluded=3, total=30, duration=1.5 s,"
        f" remarks={remarks})"
    )
    for others in ({"num_dropped": 2}, {"num_selected": 30, "num_dropped": 0}):
        assert in_words({**some, **others}).startswith("Quantum step (data selection): 5 of 10")


def test_the_facts_of_an_answer_name_the_sampler_that_was_taken() -> None:
    facts = {
        **{"energy": 0.25, "is_fallback": True, "num_variables": 10, "solver_seconds": 1.0},
        **{"alternatives": {"greedy": 0.5}, "failures": ["late"], "remarks": ["cut"]},
    }
    for info, taken in (({"num_reads": 3}, ""), ({"sampler": "exact"}, " (exact)")):
        solution = Solution([1], {1: 1}, answered_by="auto", seconds=2.0, info=info, **facts)  # type: ignore[arg-type]
        assert answer_facts(solution) == {**facts, "answered_by": f"auto{taken}", "info": info}


def test_a_selection_in_a_few_letters() -> None:
    for ids in ([], [0], [7, 8, 9], list(range(0, 100, 3))):
        assert unpacked(packed(np.array(ids, dtype=np.int64))).tolist() == ids
    decisions = Decisions()
    decisions.select_examples([5, 1])
    decisions.train_only(["block 1"])
    again = Decisions()
    again.load_state_dict(decisions.state_dict())
    assert again.state_dict() == decisions.state_dict()
    assert again.selection_hash == decisions.selection_hash


def test_what_a_step_may_cost() -> None:
    now = [0.0]
    bound = OverheadBudget(5.0, lambda: now[0])
    assert bound.step_seconds is None
    for seconds in (10.0, 2.0, 2.0):
        bound.step_begins()
        now[0] += seconds
        bound.step_has_ended()
    assert bound.step_seconds == 2.0  # the first one warms up
    bound.step_begins()
    now[0] += 3.0
    bound.pay(1.0)
    assert bound.seconds_so_far == 2.0
    bound.step_has_ended()
    assert bound.step_seconds == 2.0
    assert bound.allowed_seconds(100, 2.0) == 10.0
    assert OverheadBudget(AT_ANY_COST).allowed_seconds(100, 2.0) == math.inf
    assert OverheadBudget(AT_ANY_COST).allowed_seconds(0, 2.0) == 0.0
    over = "quantum.step_over_time_budget"
    assert "percent=5.0, allowed=10 s, needed=20)" in over_budget(40.0, 10.0, 5.0)
    assert "allowed=21 ms, needed=2,340)" in over_budget(10.0, 0.02137, 5.0)
    assert "percent=1.0, allowed=10 s, needed=1.1)" in over_budget(10.3, 10.0, 1.0)  # not 1
    assert over_budget(10.3, 10.0, 1.0).startswith(f"{over}(cost=")
    few = too_few_steps(6.25, 600, 1.0)
    assert few.startswith("quantum.step_over_work_budget(least_steps=6.25, num_steps=600, ")
    assert few.endswith("percent=1.0, allowed_steps=6.0, needed=1.1)")


def test_the_time_of_a_step_is_that_of_the_newest_ones() -> None:
    now = [0.0]
    budget = OverheadBudget(5.0, lambda: now[0])
    for seconds in range(1, 31):
        budget.step_begins()
        now[0] += seconds
        budget.step_has_ended()
    assert budget.step_seconds == sum(range(12, 31)) / 19
    now[0] += 1
    assert budget.seconds_so_far == 31.0


def test_a_solver_is_estimated_by_its_number_of_variables() -> None:
    found = {n: solver_seconds(n) for n in (1, 20, 21, 2000)}
    assert found == {1: 0.1, 20: 0.1, 21: 1.0525, 2000: 6.0}


def test_a_limit_that_would_do_is_rounded_up() -> None:
    """To two digits, never to less than is needed."""
    for cost, needed in ((0.0123, "0.013"), (0.5, "0.5"), (9.91, "10"), (12.0, "12"), (0.0, "0")):
        assert over_budget(cost, 1.0, 1.0).endswith(f"allowed=1.0 s, needed={needed})")
    allowed = {0.0: "0.0 s", 0.05: "50 ms", 0.1: "0.1 s"}
    for seconds, shown in allowed.items():
        assert f"allowed={shown}, " in over_budget(1.0, seconds, 1.0), seconds


def test_a_frequency_is_kept_and_a_bound_that_was_given_holds() -> None:
    cases = {("auto", None): (1.0, False), ("auto", 50): (10.0, True)}
    cases |= {(3.0, None): (3.0, False), (3.0, 50): (3.0, False)}
    for (percent, frequency), expected in cases.items():
        budget = OverheadBudget.of(percent, frequency, lambda: 0.0)  # type: ignore[arg-type]
        assert (budget.percent, budget.never_skips) == expected
    forecast = OverheadBudget(1.0, lambda: 0.0, forecast_step_seconds=7.0)
    assert forecast.step_seconds == 7.0
    forecast.step_begins()
    forecast.step_has_ended()
    assert forecast.step_seconds == 0.0
