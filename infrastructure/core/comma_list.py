"""Comma-separated lists as users type them: `a,b`.

An item that contains a comma is in double quotes, as in CSV: `"a,b",c`.
"""

import csv
from collections.abc import Iterable

from infrastructure.core.errors import InputError


def split_items(text: str) -> list[str]:
    """Split a list into its items, without surrounding spaces. Drop empty items.

    Raises:
        ValueError: if a quote is opened and not closed.
    """
    try:
        rows = [*csv.reader([" ".join(text.splitlines())], skipinitialspace=True, strict=True)]
    except csv.Error as error:
        raise InputError("core.unreadable_list", error=error) from error
    return [item.strip() for row in rows for item in row if item.strip()]


def join_items(items: Iterable[object]) -> str:
    """Join items to a text that `split_items` splits into the same items."""
    return ",".join(map(_quoted, map(str, items)))


def _quoted(item: str) -> str:
    if "," not in item and not item.startswith(('"', "[")):
        return item
    return '"' + item.replace('"', '""') + '"'
