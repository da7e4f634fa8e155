"""Every rule in a scripted scenario: once per incident."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.core.messages import WORDS
from infrastructure.monitoring.training_monitor import TrainingMetrics, TrainingMonitor
from infrastructure.monitoring.watching.alert_rules import gpu_rules, machine_rules, training_rules
from infrastructure.monitoring.watching.alert_sinks import AlertSink
from infrastructure.monitoring.watching.alerts import Alert, AlertRule
from tests.monitoring.scripted_machine import GIB, Moments, ScriptedGpus, ScriptedMachine

GIVEN = object()  # a limit that a setting has
RULES = [
    ("cpu_percent", "cpu_percent", GIVEN, "cpu_busy", "info", 15),
    ("memory_percent", "memory_percent", GIVEN, "main_memory_nearly_full", "critical", 2),
    ("disk_free", "disk_free_bytes", 1e9, "run_disk_nearly_full", "critical", 1),
    ("checkpoint_age", "checkpoint_age_seconds", 7200, "newest_checkpoint_too_old", "warning", 1),
    ("backup_age", "backup_age_seconds", 7200, "newest_backup_too_old", "warning", 1),
    ("copier_failures", "copier_failures", 2, "backup_worker_keeps_ending", "critical", 1),
    ("gpu_utilization", "utilization_percent", GIVEN, "gpu_busy", "info", 15),
    ("gpu_memory_percent", "memory_percent", GIVEN, "gpu_memory_nearly_full", "warning", 2),
    ("gpu_temperature", "temperature_celsius", GIVEN, "gpu_too_hot", "warning", 2),
    ("training_time_per_step", "seconds_per_step", GIVEN, "step_too_slow", "warning", 3),
    ("gradient_norm", "gradient_norm", GIVEN, "gradient_norm_too_high", "warning", 1),
    ("data_wait_percent", "data_wait_percent", 50, "steps_wait_for_data", "warning", 5),
    ("tied_steps", "num_tied_steps", 20, "rewards_all_tied", "warning", 1),
]
SEED = {
    "cpu_percent": 90.0,
    "memory_percent": 85.0,
    "gpu_utilization": 95.0,
    "gpu_memory_percent": 90.0,
    "gpu_temperature": 85.0,
    "training_time_per_step": 10.0,
    "gradient_norm": 100.0,
}
LONG = 40  # samples; more than any rule waits for


@dataclass
class Scenario:
    """A monitor whose world is set by hand."""

    monitor: TrainingMonitor
    machine: ScriptedMachine
    gpus: ScriptedGpus
    moments: Moments
    ages: dict[str, float]
    step: int = 0

    def go_on(self, num_samples: int = LONG, **metrics: float) -> None:
        """So many steps with these numbers, and a look at the machine after each."""
        for _ in range(num_samples):
            self.step += 1
            self.moments.now += 2.0
            numbers = {"gradient_norm": 1.0, "seconds_per_step": 0.5, "data_wait_percent": 1.0}
            numbers |= {"num_tied_steps": 0.0, **metrics}
            self.monitor.log_training_metrics(
                TrainingMetrics(self.moments(), 0, self.step, 1.0, 0.001, 8, **numbers)
            )
            self.monitor.sample()


class Kept:
    """A sink that keeps the rules of its alerts."""

    name = "kept"

    def __init__(self) -> None:
        self.rules: list[str] = []

    def send(self, alert: Alert) -> None:
        self.rules.append(alert.rule)

    def close(self) -> None: ...


def scenario(sink: AlertSink) -> Scenario:
    machine, gpus, moments = ScriptedMachine(), ScriptedGpus(), Moments()
    ages = {"checkpoint_age_seconds": 5.0, "backup_age_seconds": 9.0, "copier_failures": 0.0}
    monitor = TrainingMonitor(
        sinks=[sink],
        cooldown_seconds=60.0,
        machine=machine,
        gpus=gpus,
        clock=moments,
        probes={
            "checkpoint_age_seconds": lambda: ages["checkpoint_age_seconds"],
            "backup_age_seconds": lambda: ages["backup_age_seconds"],
            "copier_failures": lambda: ages["copier_failures"],
        },
    )
    return Scenario(monitor, machine, gpus, moments, ages)


INCIDENTS: dict[str, Callable[[Scenario], None]] = {
    "cpu_percent": lambda s: s.machine.set(cpu_percent=97.0),
    "memory_percent": lambda s: s.machine.set(memory_used_bytes=15 * GIB),
    "disk_free": lambda s: s.machine.set(disk_free_bytes=10**8),
    "checkpoint_age": lambda s: s.ages.update(checkpoint_age_seconds=8000.0),
    "backup_age": lambda s: s.ages.update(backup_age_seconds=8000.0),
    "copier_failures": lambda s: s.ages.update(copier_failures=3.0),
    "gpu_utilization": lambda s: s.gpus.set(utilization_percent=99.0),
    "gpu_memory_percent": lambda s: s.gpus.set(memory_used_bytes=15 * GIB),
    "gpu_temperature": lambda s: s.gpus.set(temperature_celsius=91.0),
}
OF_THE_TRAINING = {
    "training_time_per_step": {"seconds_per_step": 30.0},
    "gradient_norm": {"gradient_norm": 1e4},
    "data_wait_percent": {"data_wait_percent": 80.0},
    "tied_steps": {"num_tied_steps": 21.0},
}


def calm_down(s: Scenario) -> None:
    s.machine.set()
    s.gpus.set()
    s.ages.update(checkpoint_age_seconds=5.0, backup_age_seconds=9.0, copier_failures=0.0)


def test_every_rule_fires_once_per_incident_and_reaches_the_sink() -> None:
    sink = Kept()
    world = scenario(sink)
    world.go_on()
    for _ in range(2):  # two incidents of each kind, long after each other
        for begin in INCIDENTS.values():
            begin(world)
            world.go_on()
            calm_down(world)
            world.go_on()
        for numbers in OF_THE_TRAINING.values():
            world.go_on(**numbers)
            world.go_on()
    assert Counter(sink.rules) == dict.fromkeys([*INCIDENTS, *OF_THE_TRAINING], 2)


def test_the_scenario_has_every_rule() -> None:
    limits = AlertThresholds()
    rules = [*machine_rules(limits), *gpu_rules(limits), *training_rules(limits)]
    named = {rule.name for rule in rules}
    assert named == {*INCIDENTS, *OF_THE_TRAINING}
    assert named > set(AlertThresholds.model_fields)


def test_each_rule_has_its_limit_its_message_and_its_patience() -> None:
    limits = AlertThresholds()
    rules = [*machine_rules(limits), *gpu_rules(limits), *training_rules(limits)]
    for rule, (name, key, limit, message, severity, num_samples) in zip(rules, RULES, strict=True):
        assert rule == AlertRule(
            name,
            key,
            SEED[name] if limit is GIVEN else limit,  # type: ignore[arg-type]
            f"monitoring.{message}",
            severity,  # type: ignore[arg-type]
            name == "disk_free",
            num_samples,
        )


def test_the_limits_are_those_of_the_specification() -> None:
    limits = AlertThresholds()
    assert {name: getattr(limits, name) for name in SEED} == SEED


@pytest.mark.parametrize("name", AlertThresholds.model_fields)
def test_a_limit_that_somebody_sets_holds(name: str) -> None:
    limits = AlertThresholds(**{name: 42})
    rules = [*machine_rules(limits), *gpu_rules(limits), *training_rules(limits)]
    (rule,) = [rule for rule in rules if rule.name == name]
    assert rule.limit == 42


@pytest.mark.parametrize("number", range(13))
def test_what_an_alert_shows_can_be_written_in_words(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)
    limits = AlertThresholds()
    rules = [*machine_rules(limits), *gpu_rules(limits), *training_rules(limits)]
    assert len(rules) == 13
    rule = rules[number]
    text = rule.text(rule.limit, "GPU 0", "raised")
    limit = f"{rule.limit / 2**20:,.0f} MiB" if rule.name == "disk_free" else f"{rule.limit:g}"
    assert f"limit {limit}" in text
    assert not set("{}") & set(text)
    assert (text.count("GPU 0") == 1) == rule.name.startswith("gpu_")
