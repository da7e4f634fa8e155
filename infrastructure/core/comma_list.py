"""A list as people type it: `a,b`. An item that has a comma itself stands in double quotes, as in
CSV: `"a,b",c`."""

import csv
from collections.abc import Iterable

from infrastructure.core.errors import InputError


def split_items(text: str) -> list[str]:
    """The items, without spaces around them; empty ones are left out.

    Raises:
        ValueError: quotes that are opened and not closed.
    """
    try:
        rows = [*csv.reader([" ".join(text.splitlines())], skipinitialspace=True, strict=True)]
    except csv.Error as error:
        raise InputError("core.unreadable_list", error=error) from error
    return [item.strip() for row in rows for item in row if item.strip()]


def join_items(items: Iterable[object]) -> str:
    """The text that `split_items` reads so."""
    return ",".join(map(_quoted, map(str, items)))


def _quoted(item: str) -> str:
    if "," not in item and not item.startswith(('"', "[")):
        return item
    return '"' + item.replace('"', '""') + '"'
