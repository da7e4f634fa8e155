"""The cost of a run so far, if the user has given a price per hour."""

from infrastructure.core.price import parse_price
from infrastructure.run.record_types import Summary


def cost_of(price_per_hour: str | None, seconds: float) -> Summary:
    """Return the entry on the cost for summary.json; empty if no price per hour is given.

    Args:
        seconds: the duration of all sessions so far.
    """
    if price_per_hour is None:
        return {}
    price = parse_price(price_per_hour)
    return {
        "cost": {
            "price_per_hour": price_per_hour,
            "seconds": seconds,
            "amount": price.amount(seconds),
            "text": price.text(seconds),
        }
    }
