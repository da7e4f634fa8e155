"""The clock of a session: its age, its time limit, and when the last checkpoint is due.

The end of a session is not announced. Only its maximum length is known: 12 hours on the free Colab
and on Kaggle, 24 hours with Colab Pro+ (Colab's FAQ). Idle sessions end sooner.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from colab.runtime import Platform, platform
from infrastructure.backup.replication.status import age_words
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

VARIABLE = "TEMPER_SESSION_HOURS"
HOUR_SECONDS = 3600.0
# In ascending order: a session that has outlived one limit has the next.
LIMITS_HOURS: dict[Platform, tuple[float, ...]] = {
    Platform.COLAB: (12.0, 24.0),
    Platform.KAGGLE: (12.0,),
}
# Reserve before the end: for the last backup, and because the limits are not exact to the minute.
SPARE_SECONDS, SPARE_SHARE = 600.0, 0.1
END_OF_SESSION = Source(Layer.KEYWORD, "the end of this session")


@dataclass(frozen=True)
class SessionClock:
    """The time of one session.

    Attributes:
        started: the start of the session, in seconds since 1970.
        limit_seconds: the maximum duration of the session, or None if unknown.
        now: returns the time in seconds since 1970.
    """

    started: float
    limit_seconds: float | None
    now: Callable[[], float] = time.time

    @property
    def used_seconds(self) -> float:
        """The seconds since the session began."""
        return max(0.0, self.now() - self.started)

    @property
    def left_seconds(self) -> float | None:
        """The time until the session ends, in seconds, or None if unknown."""
        if self.limit_seconds is None:
            return None
        return max(0.0, self.limit_seconds - self.used_seconds)

    @property
    def deadline_seconds(self) -> float | None:
        """The value for `training.deadline`: the seconds until the last backup must be done."""
        left = self.left_seconds
        if left is None:
            return None
        return max(1.0, left - min(SPARE_SECONDS, SPARE_SHARE * left))

    def within_session(self, config: DeploymentConfig) -> DeploymentConfig:
        """Return `config` with a deadline that is not after the end of this session.

        An earlier deadline is kept.
        """
        mine, theirs = self.deadline_seconds, config.training.deadline
        if mine is None or (theirs is not None and theirs <= mine):
            return config
        return config.changed([GivenValue("training.deadline", mine, END_OF_SESSION)])

    def __str__(self) -> str:
        left = self.left_seconds
        end = (
            phrase("notebook.session_without_end")
            if left is None
            else phrase("notebook.session_time_left", duration=age_words(left))
        )
        return phrase("notebook.session_time", used=age_words(self.used_seconds), end=end)


def clock_of_session() -> SessionClock:
    """Return the clock of this session, based on the platform and TEMPER_SESSION_HOURS."""
    here = platform()
    given_hours = _given_hours()
    started = session_start(here)
    used_seconds = max(0.0, time.time() - started)
    hours = LIMITS_HOURS.get(here, ()) if given_hours is None else (given_hours,)
    limits = [hour * HOUR_SECONDS for hour in hours if hour * HOUR_SECONDS > used_seconds]
    return SessionClock(started, limits[0] if limits else None)


def session_start(where: Platform) -> float:
    """Return the time when the session began, in seconds since 1970.

    Colab and Kaggle give each session a container, whose first process is as old as the session.
    Elsewhere the session is as old as this process, the notebook's kernel.
    """
    first = 1 if where in (Platform.COLAB, Platform.KAGGLE) else os.getpid()
    try:
        return psutil.Process(first).create_time()
    except psutil.Error:  # hidden from this user
        return psutil.Process().create_time()


def _given_hours() -> float | None:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < float("inf"):
        raise InputError("notebook.session_hours_invalid", variable=VARIABLE, value=text)
    return hours
