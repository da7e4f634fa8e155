"""How long a session has and what that means for a training's deadline."""

import os
import time

import psutil
import pytest

from colab.runtime import Platform
from colab.session_clock import SessionClock, clock_of_session, session_start
from infrastructure.config.deployment_config import DeploymentConfig

HOUR = 3600.0


@pytest.fixture(autouse=True)
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEMPER_SESSION_HOURS", raising=False)


def clock(used_hours: float, limit_hours: float | None) -> SessionClock:
    limit = None if limit_hours is None else limit_hours * HOUR
    return SessionClock(1000.0, limit, now=lambda: 1000.0 + used_hours * HOUR)


@pytest.mark.parametrize(
    ("used", "limit", "left", "deadline"),
    [
        (2, 12, 10 * HOUR, 10 * HOUR - 600),
        (11.5, 12, 0.5 * HOUR, 0.9 * 0.5 * HOUR),
        (13, 12, 0.0, 1.0),
        (3, None, None, None),
    ],
)
def test_the_deadline_leaves_time_for_the_last_copy(
    used: float, limit: float | None, left: float | None, deadline: float | None
) -> None:
    assert clock(used, limit).used_seconds == used * HOUR
    assert clock(used, limit).left_seconds == left
    assert clock(used, limit).deadline_seconds == deadline


def test_the_clock_for_a_person() -> None:
    assert str(clock(2.5, 12)) == (
        "notebook.session_time(used=2 h 30 min,"
        " end=notebook.session_time_left(duration=9 h 30 min))"
    )
    assert str(clock(0, None)) == (
        "notebook.session_time(used=0 s, end=notebook.session_without_end())"
    )


@pytest.mark.parametrize(
    ("deadline", "expected"), [(None, 10 * HOUR - 600), (20 * HOUR, 10 * HOUR - 600), (60.0, 60.0)]
)
def test_a_training_ends_before_its_session(deadline: float | None, expected: float) -> None:
    config = DeploymentConfig(**{"training.deadline": deadline, "batch_size": 3})
    kept = clock(2, 12).within_session(config)
    assert (kept.training.deadline, kept.batch_size) == (expected, 3)
    assert config.training.deadline == deadline
    place = "keyword training.deadline" if deadline == expected else "the end of this session"
    assert kept.source("training.deadline").place == place


def test_where_no_end_is_known_the_deadline_stays() -> None:
    config = DeploymentConfig()
    assert clock(2, None).within_session(config) is config


def limit_of(monkeypatch: pytest.MonkeyPatch, platform: str, used_hours: float = 0) -> float | None:
    monkeypatch.setenv("TEMPER_PLATFORM", platform)
    started = time.time() - used_hours * HOUR
    monkeypatch.setattr("colab.session_clock.session_start", lambda where: started)
    return clock_of_session().limit_seconds


@pytest.mark.parametrize(
    ("platform", "used_hours", "hours"),
    [
        ("colab", 0, 12),
        ("colab", 12.5, 24),  # it has outlived the free one's limit, so it is Pro+
        ("colab", 25, None),
        ("kaggle", 1, 12),
        ("kaggle", 13, None),
        ("notebook", 1, None),
        ("terminal", 1, None),
    ],
)
def test_the_limit_is_the_lender_s(
    monkeypatch: pytest.MonkeyPatch, platform: str, used_hours: float, hours: float | None
) -> None:
    limit = limit_of(monkeypatch, platform, used_hours)
    assert limit == (None if hours is None else hours * HOUR)


@pytest.mark.parametrize("platform", ["colab", "notebook"])
def test_hours_that_are_given_count(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setenv("TEMPER_SESSION_HOURS", "1.5")
    assert limit_of(monkeypatch, platform) == 1.5 * HOUR
    assert limit_of(monkeypatch, platform, used_hours=2) is None


@pytest.mark.parametrize("hours", ["twelve", "0", "-1", "inf", "nan"])
def test_hours_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, hours: str) -> None:
    monkeypatch.setenv("TEMPER_SESSION_HOURS", hours)
    with pytest.raises(ValueError, match=f"session_hours_invalid.*{hours}"):
        clock_of_session()


def test_a_lent_session_is_as_old_as_its_container_s_first_process() -> None:
    assert session_start(Platform.COLAB) == psutil.Process(1).create_time()
    assert session_start(Platform.NOTEBOOK) == psutil.Process(os.getpid()).create_time()
