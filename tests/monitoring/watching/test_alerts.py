"""One alert for each incident: limits, hysteresis, samples in a row, cool-down."""

import math

import pytest

from infrastructure.monitoring.watching.alerts import AlertRule, AlertWatch

HOT = AlertRule("heat", "celsius", 80.0, "monitoring.gpu_too_hot")


def states(watch: AlertWatch, values: list[float], seconds: float = 1.0) -> list[str | None]:
    """What each value of a series, one every `seconds`, gave."""
    found: list[str | None] = []
    for number, value in enumerate(values):
        alerts = watch.check({"celsius": value}, now=1000.0 + seconds * number)
        found.append(alerts[0].state if alerts else None)
    return found


def test_an_incident_is_reported_once_however_long_it_lasts() -> None:
    watch = AlertWatch([HOT])
    assert states(watch, [70, *[90] * 1000]) == [None, "raised", *[None] * 999]
    assert watch.num_raised == {"heat": 1}
    assert watch.open_incidents() == [("heat", "")]


def test_a_value_that_trembles_around_the_limit_is_one_incident() -> None:
    watch = AlertWatch([HOT], cooldown_seconds=0)
    assert states(watch, [80, 81, 76.1, 81, 79, 80]) == [None, "raised", *[None] * 4]


def test_an_incident_ends_when_the_value_is_well_within_the_limit() -> None:
    watch = AlertWatch([HOT], cooldown_seconds=0)
    assert states(watch, [81, 76, 90]) == ["raised", "ended", "raised"]


def test_the_cool_down_keeps_a_second_alert_back_until_it_is_over() -> None:
    watch = AlertWatch([HOT], cooldown_seconds=10)
    assert states(watch, [81, 70, *[90] * 10]) == ["raised", "ended", *[None] * 8, "raised", None]


def test_only_values_in_a_row_count() -> None:
    rule = AlertRule("heat", "celsius", 80.0, "hot", num_samples=3)
    assert states(AlertWatch([rule]), [90, 90, 70, 90, 90, 90]) == [None] * 5 + ["raised"]


def test_a_lower_limit() -> None:
    rule = AlertRule("room", "celsius", 100.0, "little", is_lower=True)
    watch = AlertWatch([rule], cooldown_seconds=0)
    assert states(watch, [100, 99, 104, 105]) == [None, "raised", None, "ended"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_beyond_the_limit(value: float) -> None:
    assert states(AlertWatch([HOT]), [value]) == ["raised"]


def test_subjects_have_incidents_of_their_own() -> None:
    watch = AlertWatch([HOT])
    (first,) = watch.check({"celsius": 90.0}, 1.0, 7, "GPU 0")
    (second,) = watch.check({"celsius": 95.0}, 2.0, 7, "GPU 1")
    assert first.message.startswith("monitoring.gpu_too_hot(subject=GPU 0, value=90.0, limit=80.0")
    assert first.step == 7
    assert second.message.startswith("monitoring.gpu_too_hot(subject=GPU 1, value=95.0")
    (ended,) = watch.check({"celsius": 20.0}, 3.0, 8, "GPU 0")
    assert ended.message.startswith("monitoring.back_within_limit(subject=GPU 0: , rule=heat")
    assert ended.message.endswith("value=20.0, limit=80.0)")
    assert ended.record() == {
        **{"time": 3.0, "step": 8, "rule": "heat", "subject": "GPU 0", "state": "ended"},
        **{"severity": "warning", "value": 20.0, "limit": 80.0, "message": ended.message},
    }
    assert watch.open_incidents() == [("heat", "GPU 1")]


def test_the_text_has_bytes_in_mebibytes() -> None:
    rule = AlertRule("room", "bytes", 3 * 2**20, "monitoring.run_disk_nearly_full", is_lower=True)
    (alert,) = AlertWatch([rule]).check({"bytes": 2**21}, 1.0)
    assert alert.message.endswith("value=2097152, limit=3145728, value_mib=2 MiB, limit_mib=3 MiB)")


def test_what_was_not_measured_raises_nothing() -> None:
    watch = AlertWatch([HOT])
    assert watch.check({"celsius": None, "other": 1e9}, 1.0) == []
