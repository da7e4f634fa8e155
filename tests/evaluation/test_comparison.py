"""Two models on the same rows: pairs by place, means over the same things, and who is better."""

import pytest

from infrastructure.evaluation.comparison import compare, paired
from infrastructure.evaluation.row_losses import RowLoss
from infrastructure.evaluation.rows import MeasuredRow, ModelRows


def model(*rows: MeasuredRow) -> ModelRows:
    return ModelRows("model", {}, [*rows])


def row(place: int, loss: RowLoss | None = None, task: str = "", **scores: float) -> MeasuredRow:
    return MeasuredRow(f"rows:{place}", task, loss, None, dict(scores))


def test_rows_are_paired_by_their_place_and_each_once() -> None:
    first = model(row(1), row(2), row(2), row(4))
    second = model(row(2), row(3), row(1), row(2))
    pairs = paired(first, second)
    assert [a.place for a, _ in pairs] == [b.place for _, b in pairs]
    assert [a.place for a, _ in pairs] == ["rows:1", "rows:2", "rows:2"]
    assert pairs[0][1] is second.rows[2]
    assert pairs[1][1] is second.rows[0]
    assert pairs[2][1] is second.rows[3]


def test_only_rows_of_both_count_and_the_second_minus_the_first_is_the_difference() -> None:
    losses = [(RowLoss(4.0, 1, 2), RowLoss(3.0, 2, 2)), (RowLoss(6.0, 0, 8), RowLoss(5.0, 4, 8))]
    first = model(*[row(n, losses[n % 2][0], "ab"[n % 2], f1=0.5) for n in range(40)])
    second = model(*[row(n, losses[n % 2][1], "ab"[n % 2], f1=0.25) for n in range(40)])
    first.rows += [row(99, RowLoss(900.0, 0, 1), "c", f1=0.0), row(100, RowLoss(1.0, 0, 1), f1=1.0)]
    second.rows.append(row(100))  # it was not answered there, and has no loss
    found = compare(first, second)
    assert [*found] == ["all", "a", "b"]
    of_all = {one.measure: one for one in found["all"]}
    loss = of_all["loss"]
    assert (loss.num_rows, loss.first, loss.second) == (40, 1.0, 0.8)
    assert loss.difference.value == pytest.approx(-0.2)
    assert loss.verdict == "second is better", "less is better"
    assert of_all["token_accuracy"].first == pytest.approx(0.1)
    assert of_all["token_accuracy"].second == pytest.approx(0.6)
    assert of_all["token_accuracy"].verdict == "second is better"
    assert (of_all["f1"].difference.value, of_all["f1"].verdict) == (-0.25, "first is better")
    assert (loss.only_first, loss.only_second, loss.chance) == (None, None, None)
    [of_a] = [one for one in found["a"] if one.measure == "loss"]
    assert (of_a.num_rows, of_a.first, of_a.second) == (20, 2.0, 1.5)
    assert "perplexity" not in of_all


def test_what_only_one_has_right_decides_whether_it_is_chance() -> None:
    right = [(1.0, 0.0)] * 2 + [(0.0, 1.0)] * 11 + [(1.0, 1.0)] * 30 + [(0.0, 0.0)] * 5
    first = model(*[row(n, exact_match=one) for n, (one, _) in enumerate(right)])
    second = model(*[row(n, exact_match=other) for n, (_, other) in enumerate(right)])
    [one] = compare(first, second)["all"]
    assert (one.only_first, one.only_second, one.num_rows) == (2, 11, 48)
    assert one.chance == pytest.approx(0.0225, abs=1e-4)
    assert one.verdict == "second is better"
    [other] = compare(second, first)["all"]
    assert (other.only_first, other.only_second, other.verdict) == (11, 2, "first is better")


def test_losses_over_other_tokens_are_not_compared() -> None:
    first = model(row(1, RowLoss(1.0, 1, 2), f1=0.5), row(2, RowLoss(1.0, 1, 2), f1=0.5))
    second = model(row(1, RowLoss(1.0, 1, 2), f1=0.5), row(2, RowLoss(1.0, 1, 3), f1=0.5))
    assert [one.measure for one in compare(first, second)["all"]] == ["f1"]
    assert compare(model(row(1)), model(row(1))) == {}
