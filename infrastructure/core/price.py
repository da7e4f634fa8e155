"""The hourly price of a machine, and the cost of using it for some time.

A price is a number, optionally with a currency or another unit: `2.5`, `$2.50`, `2.5 EUR`,
`1.76 compute units`.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from infrastructure.core.errors import InputError

_PRICE = re.compile(r"(?P<sign>[^\w\s.,+-]?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[^\d.,+-]*)")
MAX_UNIT_CHARACTERS = 20
MAX_PRICE = 1e6


@dataclass(frozen=True)
class Price:
    """The price per hour.

    Attributes:
        sign: the text before the number, such as "$".
        unit: the text after the number, such as "EUR".
    """

    per_hour: float
    sign: str = ""
    unit: str = ""

    def amount(self, seconds: float) -> float:
        """Return the cost of this many seconds, as a number."""
        return self.per_hour * seconds / 3600

    def text(self, seconds: float) -> str:
        """Return the cost as text: `2.90`, `$2.90`, `2.90 EUR`, `0.003`."""
        amount = self.amount(seconds)
        small = f"{float(f'{amount:.1g}'):.9f}".rstrip("0").rstrip(".")  # 0.00007, not 7e-05
        return self._shown(f"{amount:,.2f}" if amount >= 0.005 else small)

    def __str__(self) -> str:
        return self._shown(f"{Decimal(f'{self.per_hour:.10g}'):f}")  # not 6e-05

    def _shown(self, number: str) -> str:
        return f"{self.sign}{number} {self.unit}".strip()


def parse_price(text: str) -> Price:
    """Return the price in a text.

    Raises:
        ValueError: if the text does not contain a valid price.
    """
    match = _PRICE.fullmatch(text.strip())
    unit = match["unit"].strip() if match else ""
    if match is None or len(unit) > MAX_UNIT_CHARACTERS or (match["sign"] and unit):
        raise InputError("core.not_a_price")
    number = float(match["number"])
    if not 0 < number <= MAX_PRICE:
        raise InputError("core.not_a_price")
    return Price(number, match["sign"], unit)
