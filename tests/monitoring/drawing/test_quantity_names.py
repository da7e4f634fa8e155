"""Numbers of TRL's trainers have names for people; those of others keep their own."""

from infrastructure.monitoring.drawing.charts import charts_of
from infrastructure.monitoring.drawing.quantity_names import KNOWN, in_order, name_of


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
