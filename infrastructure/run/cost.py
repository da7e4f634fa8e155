"""What a run has cost until now, where somebody has given the price of an hour."""

from infrastructure.core.price import parse_price
from infrastructure.run.record_types import Summary


def cost_of(price_per_hour: str | None, seconds: float) -> Summary:
    """What summary.json says of it; nothing without a price.

    Args:
        seconds: of all sessions until now.
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
