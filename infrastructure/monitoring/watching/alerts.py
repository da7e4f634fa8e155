"""The detection of incidents in numbers: one alert for each incident, not for each sample.

An incident begins when a number has been beyond its limit for several samples in a row. It ends
when the number is well within the limit again (hysteresis), so a number that fluctuates around the
limit is one incident. Two alerts of one kind are at least the cooldown apart. An incident that
begins during a cooldown is reported after it, if it still lasts.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from infrastructure.core.messages import phrase

State = Literal["raised", "ended"]
Severity = Literal["info", "warning", "critical"]
CLEAR_SHARE = 0.05  # of the limit: how far a number must be within it to end an incident


@dataclass(frozen=True)
class AlertRule:
    """A limit for one number.

    Attributes:
        name: the setting in `monitor.thresholds`, if its limit can be set.
        key: the key of the number.
        limit: the value beyond which an alert is raised. NaN is beyond every limit.
        message: the code of the text for the user, which gets `subject`, `value` and `limit`, and
            for bytes `value_mib` and `limit_mib`.
        severity: the severity, which is info if the user need not act.
        is_lower: whether the alert is raised below the limit.
        num_samples: the number of values in a row beyond the limit that begin an incident.
    """

    name: str
    key: str
    limit: float
    message: str
    severity: Severity = "warning"
    is_lower: bool = False
    num_samples: int = 1

    def is_beyond(self, value: float) -> bool:
        return not (value >= self.limit if self.is_lower else value <= self.limit)

    def is_clear(self, value: float) -> bool:
        """Return whether `value` is far enough within the limit that an incident is over."""
        margin = CLEAR_SHARE * abs(self.limit)
        return value >= self.limit + margin if self.is_lower else value <= self.limit - margin

    def text(self, value: float, subject: str, state: State) -> str:
        """Return the text of an alert for the user."""
        if state == "ended":
            about = f"{subject}: " if subject else ""
            return phrase(
                "monitoring.back_within_limit",
                subject=about,
                rule=self.name,
                value=value,
                limit=self.limit,
            )
        return phrase(
            self.message,
            subject=subject,
            value=value,
            limit=self.limit,
            value_mib=f"{value / 2**20:,.0f} MiB",
            limit_mib=f"{self.limit / 2**20:,.0f} MiB",
        )


@dataclass(frozen=True)
class Alert:
    """The beginning or end of an incident.

    Attributes:
        time: the time in seconds since 1970.
        rule, subject: the name of the rule, and the subject, which is "" or a GPU.
    """

    time: float
    step: int
    rule: str
    subject: str
    state: State
    severity: Severity
    value: float
    limit: float
    message: str

    def record(self) -> dict[str, object]:
        """Return plain values for a line of alerts.jsonl."""
        return asdict(self)


@dataclass
class _Incident:
    num_beyond: int = 0
    is_open: bool = False
    raised_at: float = -math.inf


@dataclass
class AlertWatch:
    """A set of rules with which values are compared, and the incidents so far.

    Attributes:
        rules: the rules, each of which checks its key if that is among the values.
        cooldown_seconds: the minimum time between two alerts of one rule on one subject.
        num_raised: the number of alerts since the start, by rule.
    """

    rules: Iterable[AlertRule]
    cooldown_seconds: float = 300.0
    num_raised: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_key: dict[str, list[AlertRule]] = {}
        for rule in self.rules:
            self._by_key.setdefault(rule.key, []).append(rule)
        self._incidents: dict[tuple[str, str], _Incident] = {}

    def check(
        self, values: Mapping[str, float | None], now: float, step: int = 0, subject: str = ""
    ) -> list[Alert]:
        """Return the incidents that begin or end with these values. Values of None are ignored.

        Args:
            now: the time in seconds since 1970.
        """
        alerts = (
            self._look(rule, value, now, step, subject)
            for key, rules in self._by_key.items()
            if (value := values.get(key)) is not None
            for rule in rules
        )
        return [alert for alert in alerts if alert is not None]

    def open_incidents(self) -> list[tuple[str, str]]:
        """Return (rule, subject) of each open incident."""
        return [key for key, incident in self._incidents.items() if incident.is_open]

    def _look(
        self, rule: AlertRule, value: float, now: float, step: int, subject: str
    ) -> Alert | None:
        incident = self._incidents.setdefault((rule.name, subject), _Incident())
        state: State
        if rule.is_beyond(value):
            incident.num_beyond += 1
            is_cool = now - incident.raised_at >= self.cooldown_seconds
            if incident.is_open or incident.num_beyond < rule.num_samples or not is_cool:
                return None
            incident.is_open, incident.raised_at, state = True, now, "raised"
            self.num_raised[rule.name] = self.num_raised.get(rule.name, 0) + 1
        else:
            incident.num_beyond = 0
            if not incident.is_open or not rule.is_clear(value):
                return None
            incident.is_open, state = False, "ended"
        text = rule.text(value, subject, state)
        return Alert(now, step, rule.name, subject, state, rule.severity, value, rule.limit, text)
