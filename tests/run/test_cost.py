"""What a run has cost."""

from infrastructure.run.cost import cost_of


def test_the_cost_is_the_price_of_the_hours() -> None:
    assert cost_of(None, 5400.0) == {}
    cost = cost_of("2.50", 5400.0)["cost"]
    assert (cost["price_per_hour"], cost["seconds"], cost["amount"]) == ("2.50", 5400.0, 3.75)
    assert "3.75" in cost["text"]
