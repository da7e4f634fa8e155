"""What an hour of a machine costs, in the words of whoever pays."""

import pytest

from infrastructure.core.price import parse_price


@pytest.mark.parametrize(
    ("text", "shown", "cost"),
    [
        ("2.5", "2.5", "2.90"),
        ("$2.50", "$2.5", "$2.90"),
        ("€ 2.5", "€2.5", "€2.90"),
        ("2.5 EUR", "2.5 EUR", "2.90 EUR"),
        ("1.76 compute units", "1.76 compute units", "2.04 compute units"),
        ("12000", "12000", "13,920.00"),
        ("0.001 EUR", "0.001 EUR", "0.001 EUR"),
        ("0.00006", "0.00006", "0.00007"),
        ("0.0044", "0.0044", "0.01"),
        ("0.0042", "0.0042", "0.005"),
        (f"1{'x' * 20}", f"1 {'x' * 20}", f"1.16 {'x' * 20}"),
        ("$1000000", "$1000000", "$1,160,000.00"),
    ],
)
def test_a_price_is_a_number_and_perhaps_a_currency(text: str, shown: str, cost: str) -> None:
    price = parse_price(text)
    assert str(price) == shown
    assert price.text(4176) == cost
    assert parse_price(str(price)) == price


@pytest.mark.parametrize(
    "text",
    ["", "free", "-2", "0", "2.5.1", "$2 EUR", "1e9", "2,5", "nan", "1000000.1", f"1{'x' * 21}"],
)
def test_what_is_no_price_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"core\.not_a_price"):
        parse_price(text)
