"""Numbers of TRL's trainers have names for people; those of others keep their own."""

import pytest

from infrastructure.monitoring.drawing.charts import charts_of
from infrastructure.monitoring.drawing.quantity_names import (
    HIGHER,
    KNOWN,
    LOWER,
    in_order,
    name_and_value,
    name_of,
    without_ties,
)


def test_no_name_is_a_key_and_each_is_used_once() -> None:
    names = [name_of(key) for key in KNOWN]
    assert not [name.title for name in names if "/" in name.title or "_" in name.title]
    titles = [name.title for key, name in KNOWN.items() if key != "mean_reward"]
    assert len({*titles}) == len(titles)
    of_one_side = [n for key, n in KNOWN.items() if key.endswith(("/chosen", "/rejected"))]
    assert of_one_side
    assert not [name.title for name in of_one_side if name.better]  # only of the two together
    assert name_of("eval_rewards/my_reward/std").title == "reward my reward, spread"
    assert name_of("eval_win_rate").title == "win rate"
    assert in_order(["x", "eval_reward", "rewards/margins"]) == [
        "rewards/margins",
        "eval_reward",
        "x",
    ]


SHARES = [
    *("rewards/accuracies", "frac_reward_zero_std", "mean_token_accuracy"),
    *("completions/clipped_ratio", "end_accuracy", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    *("clip_ratio/region_mean", "clip_ratio/low_min", "clip_ratio/high_max"),
    *("exact_match", "final_answer", "token_accuracy"),
]
HIGHER_IS_BETTER = [
    *("rewards/accuracies", "accuracy", "rewards/margins", "margin", "log_odds_chosen"),
    *("log_odds_ratio", "reward", "mean_token_accuracy", "end_accuracy"),
    *("exact_match", "final_answer", "token_accuracy"),
]
LOWER_IS_BETTER = [
    *("nll_loss", "frac_reward_zero_std", "completions/clipped_ratio", "aux_loss"),
    *("loss_first_answers", "loss_later_answers", "perplexity"),
]
OF_THE_SUMMARY = [
    *(key for key in KNOWN if key in {*SHARES, *HIGHER_IS_BETTER, *LOWER_IS_BETTER}),
    *("rewards/chosen", "rewards/rejected", "kl", "completions/mean_length"),
]
DETAILS = [
    *("log_odds_ratio", "aux_loss", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    *("clip_ratio/region_mean", "clip_ratio/low_min", "clip_ratio/high_max"),
]


def test_each_quantity_has_its_form_and_its_direction() -> None:
    assert [key for key, name in KNOWN.items() if name.is_share] == SHARES
    assert [key for key, name in KNOWN.items() if name.better == HIGHER] == HIGHER_IS_BETTER
    assert [key for key, name in KNOWN.items() if name.better == LOWER] == LOWER_IS_BETTER
    summed_up = {key for key, name in KNOWN.items() if not name.is_detail}
    assert summed_up == {*OF_THE_SUMMARY} - {*DETAILS}


def test_a_tie_is_a_margin_of_rounding_errors() -> None:
    for margin, is_tied in ((0.0, True), (-1e-6, True), (1.1e-6, False), ("x", False)):
        numbers = {"eval_rewards/margins": margin, "eval_rewards/accuracies": 0.0, "loss": 1.0}
        kept = {key: value for key, value in numbers.items() if "acc" not in key or not is_tied}
        assert without_ties(numbers) == kept


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("eval_exact_match", ("exact match", "50.0%")),
        ("eval_perplexity", ("perplexity", "0.5000")),
        ("eval_other\x1b", ("eval_other�", "0.5000")),
    ],
)
def test_a_known_quantity_is_shown_by_its_name(key: str, shown: tuple[str, str]) -> None:
    assert name_and_value(key, 0.5) == shown


def test_training_and_held_out_are_in_one_chart_and_zeros_in_none() -> None:
    points = {
        "rewards/margins": [(1.0, 0.1), (2.0, 0.2)],
        "eval_rewards/margins": [(2.0, 0.3)],
        "clip_ratio/low_min": [(1.0, 0.0), (2.0, 0.0)],
        "eval_f1": [(2.0, 0.5)],
    }
    charts = charts_of(points, {"eval_rewards/margins", "eval_f1"})
    assert [chart.title for chart in charts.values()] == [
        "Margin of chosen over rejected (higher is better)",
        "F1, held out",
    ]
    assert charts["rewards/margins"].marks == [(2.0, 0.3)]


def test_pairs_that_nothing_ranks_are_not_drawn_as_wrong() -> None:
    points = {
        "rewards/accuracies": [(1.0, 0.0), (2.0, 0.75)],
        "rewards/margins": [(1.0, 0.0), (2.0, 0.2)],
        "eval_rewards/accuracies": [(0.0, 0.0), (2.0, 0.0)],
        "eval_rewards/margins": [(0.0, 0.0), (2.0, -0.3)],
    }
    chart = charts_of(points, {"eval_rewards/accuracies"})["rewards/accuracies"]
    assert chart.points == [(2.0, 0.75)]
    assert chart.marks == [(2.0, 0.0)]
