"""Formatting of numbers and text, the same in the console, tables, pages and the report.

This module does not depend on terminals or HTML. NaN and infinity are always shown as such, never
as 0.
"""

import math
from datetime import datetime
from typing import TypeGuard

NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of a JSON file is a number, finite or not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def not_finite_name(value: float) -> str | None:
    """Return "NaN", "Infinity" or "-Infinity", or None for a finite number."""
    return None if math.isfinite(value) else NOT_FINITE[str(float(value))]


def format_number(value: float, digits: int = 4) -> str:
    """Format `value` with `digits` significant digits: 2.345, 0.0123, 3e-05, 12,345, NaN."""
    value = float(value)
    if name := not_finite_name(value):
        return name
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= size < 10**digits:
        decimals = digits - 1 - math.floor(math.log10(size))
        return f"{value:,.{decimals}f}"
    if 1 <= size < 1e15:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent):03d}"


def format_rate(rate: float) -> str:
    """Format a rate per second as a whole number."""
    return format_number(round(rate) if math.isfinite(rate) else rate)


def format_share(share: float) -> str:
    """Format a share in percent: 0.975 → 97.5%.

    Only a value of exactly 1 is shown as 100%, and only exactly 0 as 0%.
    """
    share = float(share)
    if name := not_finite_name(share):
        return name
    if 0.9995 <= share < 1:
        return "> 99.9%"
    if 0 < share < 0.0005:
        return "< 0.1%"
    return f"{100 * share:.0f}%" if share in (0, 1) else f"{100 * share:.1f}%"


def format_bytes(num_bytes: float) -> str:
    """Format a size in binary units: 512 B, 1.5 MiB, 11.2 GiB."""
    if name := not_finite_name(num_bytes):
        return name
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Format a duration: 0.4 s, 45 s, 2 min 05 s, 1 h 02 min, 3 d 04 h."""
    if name := not_finite_name(seconds):
        return name
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // (24 * 60)} d {minutes // 60 % 24:02d} h"


def format_step_time(seconds: float) -> str:
    """Format a duration, with milliseconds below a second: 42 ms, 1.9 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else format_duration(seconds)


def format_moment(recorded: str) -> str:
    """Format a recorded time in local time: `2026-11-25 23:42`; other text is unchanged."""
    try:
        moment = datetime.fromisoformat(recorded)
    except ValueError:
        return recorded
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def clip(text: str, max_characters: int) -> str:
    """Return `text`, cut to `max_characters`, with a note on how many characters were left out."""
    if len(text) <= max_characters:
        return text
    left_out = len(text) - max_characters
    return f"{text[:max_characters]} … ({left_out:,} more characters)"


def blank(answer: str) -> str:
    """Return a note for an answer that is empty or has only white space."""
    return "(only white space)" if answer else "(empty answer)"


def printable(text: object) -> str:
    """Return `text` on one line, without control characters, which could manipulate a terminal."""
    return "".join(map(_printable_character, str(text)))


def _printable_character(character: str) -> str:
    if character.isspace():
        return " "
    return character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
