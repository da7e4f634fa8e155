import math
import time

import pytest

from infrastructure.monitoring.drawing.formatting import (
    blank,
    clip,
    format_bytes,
    format_duration,
    format_moment,
    format_number,
    format_rate,
    format_share,
    format_step_time,
    is_number,
    printable,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.34567, "2.346"),
        (0.0123, "0.01230"),
        (3e-5, "3e-05"),
        (-5.5e-9, "-5.5e-09"),
        (0, "0"),
        (1234567, "1,234,567"),
        (4699.3, "4,699"),
        (12345.6, "12,346"),
        (1e300, "1e300"),
        (0.001, "0.001000"),
        (0.00099, "9.9e-04"),
        (-0.25, "-0.2500"),
        (10_000.25, "10,000"),
        (1e14, "100,000,000,000,000"),
        (1e15, "1e015"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.975, "97.5%"),
        (0.9994, "99.9%"),
        (0.9995, "> 99.9%"),
        (1.5, "150.0%"),
        (0.0005, "0.1%"),
        (-0.25, "-25.0%"),
        (1, "100%"),
        (0.0001, "< 0.1%"),
        (0, "0%"),
        (math.nan, "NaN"),
    ],
)
def test_a_share_never_rounds_to_all_or_nothing(share: float, shown: str) -> None:
    assert format_share(share) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.95, "10 s"),
        (59.4, "59 s"),
        (3599.4, "59 min 59 s"),
        (3599.5, "1 h 00 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 d 00 h"),
        (59.7, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3725, "1 h 02 min"),
        (270000, "3 d 03 h"),
        (math.nan, "NaN"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (-(2**30), "-1.0 GiB"),
        (2**44, "16.0 TiB"),
        (math.inf, "Infinity"),
    ],
)
def test_sizes(num_bytes: float, shown: str) -> None:
    assert format_bytes(num_bytes) == shown


def test_a_moment_is_shown_by_the_clock_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert format_moment("2026-11-25T23:42:49+0000") == "2026-11-26 00:42"
        assert format_moment("some day") == "some day"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_clipping_shows_how_much_is_missing() -> None:
    assert clip("abc", 3) == "abc"
    assert clip("a" * 2000, 10) == "aaaaaaaaaa … (1,990 more characters)"


def test_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2J\nb\u202ec") == "a�[2J b�c"
    assert printable("日本 é") == "日本 é"


@pytest.mark.parametrize(("seconds", "text"), [(0.0421, "42 ms"), (1, "1.0 s"), (75, "1 min 15 s")])
def test_the_time_of_a_step_is_readable(seconds: float, text: str) -> None:
    assert format_step_time(seconds) == text


def test_a_rate_is_a_whole_number() -> None:
    assert [format_rate(rate) for rate in (1234.6, 0.4, math.nan)] == ["1,235", "0", "NaN"]
    assert [is_number(value) for value in (1, math.nan, True, "1", None)] == [
        True,
        True,
        *[False] * 3,
    ]


def test_line_breaks_alone_are_no_empty_answer() -> None:
    assert [blank(""), blank("\n\n")] == ["(empty answer)", "(only white space)"]
