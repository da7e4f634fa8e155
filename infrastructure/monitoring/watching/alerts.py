"""Detection of incidents in values over time, with one alert per incident instead of one per
sample.

An incident begins when a value was beyond its limit in several samples in a row. It ends when the
value is well within the limit again (hysteresis), so a value that fluctuates around the limit is
one incident. Between two alerts of one kind, there is at least the cooldown time. An incident that
begins during a cooldown is reported after the cooldown, if it is not over.
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
    """A limit for one value, and the alert that is raised beyond it.

    Attributes:
        name: the setting in `monitor.thresholds`, if its limit can be set.
        key: the key of the value.
        limit: the value beyond which an alert is raised. NaN is beyond every limit.
        message: the code of the message to the user. Its values are `subject`, `value` and `limit`,
            and for bytes `value_mib` and `limit_mib`.
        severity: the severity, which is info if the user need not do anything.
        is_lower: whether the alert is raised below the limit instead of above it.
        num_samples: how many values in a row must be beyond the limit before an incident begins.
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
        rule, subject: the name of the rule, and the GPU that the incident concerns, or "".
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
        """Return the alert as plain values for alerts.jsonl."""
        return asdict(self)


@dataclass
class _Incident:
    num_beyond: int = 0
    is_open: bool = False
    raised_at: float = -math.inf


@dataclass
class AlertWatch:
    """A set of alert rules that are applied to values, and the incidents so far.

    Attributes:
        rules: the rules. A rule is ignored if its key is not among the values.
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
