import math

import pytest
from rich.cells import cell_len

from infrastructure.monitoring.drawing.tables import (
    before_after_rows,
    before_after_table,
    held_out_loss,
    render_table,
)

RANKED = "pairs ranked correctly (higher is better)"
BEFORE = {"eval_loss": 8.0, "exact_match": {"reverse": 0.0, "all": 0.05}}
AFTER = {"eval_loss": 0.4, "exact_match": {"reverse": 0.975, "all": 0.97, "sort": 1.0}}


def test_the_table_that_ends_a_training() -> None:
    assert before_after_table(BEFORE, AFTER).splitlines() == [
        "               before   after        change",
        "─────────────  ──────  ──────  ────────────",
        "held-out loss       8  0.4000        -95.0%",
        "exact match      5.0%   97.0%  +92.0 points",
        "  reverse          0%   97.5%  +97.5 points",
        "  sort              –    100%",
    ]


def test_a_change_that_rounds_to_nothing_has_no_minus() -> None:
    [loss, share] = before_after_rows(
        {"eval_loss": 8.0, "exact_match": {"all": 0.5}},
        {"eval_loss": 7.9999, "exact_match": {"all": 0.49999}},
    )
    assert (loss[-1], share[-1]) == ("+0.0%", "+0.0 points")


def test_nan_is_shown_and_claims_no_change() -> None:
    table = before_after_table({"eval_loss": 8.0}, {"eval_loss": math.nan})
    assert table.splitlines()[-1] == "held-out loss       8    NaN"


def test_other_numbers_have_their_own_rows() -> None:
    table = before_after_table({"win_rate": 0.25}, {"win_rate": 0.5, "eval_words": 3})
    assert table.splitlines()[2:] == ["win rate  0.2500  0.5000", "words          –       3"]


def test_numbers_of_a_method_have_readable_names_and_a_direction() -> None:
    before = {"eval_loss": 0.69, "eval_logits/chosen": 1, "eval_rewards/accuracies": 0.0}
    after = {"eval_loss": 0.5, "eval_rewards/margins": 0.25, "eval_rewards/accuracies": 0.75}
    assert before_after_rows(before, after, has_details=False) == [
        ("held-out loss", "0.6900", "0.5000", "-27.5%"),
        (RANKED, "0%", "75.0%", "+75.0 points"),
        ("margin of chosen over rejected (higher is better)", "–", "0.2500", ""),
    ]
    assert before_after_rows(before, after)[-1] == ("mean logit in chosen answers", "1", "–", "")


def test_a_model_that_is_its_own_reference_ranks_no_pair() -> None:
    """TRL counts a tie as wrong: 0% would be the measure of a model that is always wrong."""
    before = {"eval_rewards/accuracies": 0.0, "eval_rewards/margins": 1e-9}
    after = {"eval_rewards/accuracies": 0.75, "eval_rewards/margins": 0.5}
    assert before_after_rows(before, after)[0] == (RANKED, "–", "75.0%", "")
    wrong = before | {"eval_rewards/margins": -0.5}
    assert before_after_rows(wrong, after)[0] == (RANKED, "0%", "75.0%", "+75.0 points")


def test_a_loss_without_meaning_is_left_to_the_files() -> None:
    numbers = {"eval_loss": 0.0, "eval_reward": 0.5, "eval_rewards/exact_answer/mean": 0.5}
    rows = before_after_rows(numbers, numbers | {"eval_reward": 1.0})
    assert rows == [
        ("mean reward (higher is better)", "0.5000", "1", "+0.5000"),
        ("reward exact answer (higher is better)", "0.5000", "0.5000", "+0"),
    ]


def test_nothing_measured_is_no_table() -> None:
    assert before_after_table({}, {}) == ""


def test_wide_characters_keep_the_columns_aligned() -> None:
    lines = render_table(["task", "n"], [["数える", 1], ["abc", 22], ["e\u0301", 3]]).splitlines()
    assert {cell_len(line) for line in lines} == {len(lines[1])}


def test_names_from_data_are_cut_and_cannot_steer_the_terminal() -> None:
    table = render_table(["task", "n"], [["x" * 500, 1], ["a\x1b[2J\nb", 2]])
    assert "\x1b" not in table
    assert len(table.splitlines()) == 4
    assert table.splitlines()[2] == f"{'x' * 59}…  1"
    fits = render_table(["", ""], [["x" * 60, "y" * 4]], max_cell_width=60).splitlines()[2]
    assert fits == f"{'x' * 60}  yyyy"
    assert render_table(["a"], [["ab cdef"]], max_cell_width=4).splitlines() == ["a", "───", "ab…"]


@pytest.mark.parametrize(
    ("loss", "name"),
    [(None, "held-out loss"), ("cross_entropy", "held-out loss"), ("a\nb", "held-out loss (a b)")],
)
def test_a_loss_of_its_own_is_named(loss: object, name: str) -> None:
    assert held_out_loss(loss) == before_after_rows({}, {"eval_loss": 1.0}, loss)[0][0] == name
    assert before_after_table({}, {"eval_loss": 1.0}, loss).splitlines()[2].startswith(name)


def test_a_rising_loss_and_one_from_nothing_are_shown_as_such() -> None:
    changes = [
        before_after_rows({"eval_loss": before}, {"eval_loss": after})[0][3]
        for before, after in ((2.0, 3.0), (0.0, 1.0), (-1.0, 1.0), (2.0, 1.0))
    ]
    assert changes == ["+50.0%", "", "", "-50.0%"]
    rows = before_after_rows({"kl": 0.5, "reward": 1.0}, {"kl": 1.0, "reward": 0.5})
    assert [row[3] for row in rows] == ["-0.5000", ""]


def test_only_a_loss_of_nothing_has_fallen_by_all_of_it() -> None:
    changes = {
        after: before_after_rows({"eval_loss": 6.231}, {"eval_loss": after})[0][3]
        for after in (3.0, 0.002, 1e-9, 0.0)
    }
    assert changes == {3.0: "-51.9%", 0.002: "-99.97%", 1e-9: "< -99.9999%", 0.0: "-100%"}


def test_a_small_change_is_no_minus_nothing() -> None:
    def change(before: float, after: float) -> str:
        return before_after_rows({"eval_loss": before}, {"eval_loss": after})[0][3]

    assert change(0.69315, 0.69297) == "-0.03%"
    assert change(2.0, 2.001) == "+0.05%"
    assert change(2.0, 2.0 - 1e-9) == change(2.0, 2.0) == "+0.0%"
