"""The alert rules: one for each setting in `monitor.thresholds`, and some with a fixed limit.

A value that fluctuates, such as the CPU load, must be beyond its limit for a while before an alert
is raised. Other values, such as the gradient norm, raise an alert at once. Alerts on a high load of
the CPU or GPU are only informational, because a high load is normal in training.
"""

from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.monitoring.watching.alerts import AlertRule

BUSY_SAMPLES = 15  # half a minute at the default interval
FREE_DISK_BYTES = 1e9
OLD_SECONDS = 7200.0  # of the newest checkpoint, and of the newest confirmed backup
COPIER_FAILURES = 2  # in a row
DATA_WAIT_PERCENT = 50.0  # of a step
TIED_STEPS = 20  # in a row, in which all answers to each prompt got equal rewards


def machine_rules(limits: AlertThresholds) -> list[AlertRule]:
    """Return the alert rules for the machine. Their keys are those of a monitor's sample."""
    return [
        AlertRule(
            "cpu_percent",
            "cpu_percent",
            limits.cpu_percent,
            "monitoring.cpu_busy",
            severity="info",
            num_samples=BUSY_SAMPLES,
        ),
        AlertRule(
            "memory_percent",
            "memory_percent",
            limits.memory_percent,
            "monitoring.main_memory_nearly_full",
            severity="critical",
            num_samples=2,
        ),
        AlertRule(
            "disk_free",
            "disk_free_bytes",
            FREE_DISK_BYTES,
            "monitoring.run_disk_nearly_full",
            severity="critical",
            is_lower=True,
        ),
        AlertRule(
            "checkpoint_age",
            "checkpoint_age_seconds",
            OLD_SECONDS,
            "monitoring.newest_checkpoint_too_old",
        ),
        AlertRule(
            "backup_age",
            "backup_age_seconds",
            OLD_SECONDS,
            "monitoring.newest_backup_too_old",
        ),
        AlertRule(
            "copier_failures",
            "copier_failures",
            COPIER_FAILURES,
            "monitoring.backup_worker_keeps_ending",
            severity="critical",
        ),
    ]


def gpu_rules(limits: AlertThresholds) -> list[AlertRule]:
    """Return the alert rules for each GPU. Their keys are the fields of GpuReading."""
    return [
        AlertRule(
            "gpu_utilization",
            "utilization_percent",
            limits.gpu_utilization,
            "monitoring.gpu_busy",
            severity="info",
            num_samples=BUSY_SAMPLES,
        ),
        AlertRule(
            "gpu_memory_percent",
            "memory_percent",
            limits.gpu_memory_percent,
            "monitoring.gpu_memory_nearly_full",
            num_samples=2,
        ),
        AlertRule(
            "gpu_temperature",
            "temperature_celsius",
            limits.gpu_temperature,
            "monitoring.gpu_too_hot",
            num_samples=2,
        ),
    ]


def training_rules(limits: AlertThresholds) -> list[AlertRule]:
    """Return the alert rules for training. Their keys are the fields of TrainingMetrics."""
    return [
        AlertRule(
            "training_time_per_step",
            "seconds_per_step",
            limits.training_time_per_step,
            "monitoring.step_too_slow",
            num_samples=3,
        ),
        AlertRule(
            "gradient_norm",
            "gradient_norm",
            limits.gradient_norm,
            "monitoring.gradient_norm_too_high",
        ),
        AlertRule(
            "data_wait_percent",
            "data_wait_percent",
            DATA_WAIT_PERCENT,
            "monitoring.steps_wait_for_data",
            num_samples=5,
        ),
        AlertRule(
            "tied_steps",
            "num_tied_steps",
            TIED_STEPS,
            "monitoring.rewards_all_tied",
        ),
    ]
