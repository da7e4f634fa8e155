"""The alert rules: one for each setting in `monitor.thresholds`.

A number that jumps, such as the load of a processor, must be beyond its limit for a while; one that
is bad at once, such as the norm of the gradient, need not. A fully used processor or GPU is what a
training wants, so these two are information.
"""

from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.monitoring.watching.alerts import AlertRule

BUSY_SAMPLES = 15  # half a minute of the default interval


def machine_rules(limits: AlertThresholds) -> list[AlertRule]:
    """The rules on what the machine says, in the keys of a sample."""
    return [
        AlertRule(
            "cpu_percent",
            "cpu_percent",
            limits.cpu_percent,
            "the processor is {value:.0f} % busy (limit {limit:g} %): what else runs here waits",
            severity="info",
            num_samples=BUSY_SAMPLES,
        ),
        AlertRule(
            "memory_percent",
            "memory_percent",
            limits.memory_percent,
            "main memory is {value:.0f} % full (limit {limit:g} %): the system may soon end this "
            "run; fewer data workers or data.streaming take less",
            severity="critical",
            num_samples=2,
        ),
        AlertRule(
            "disk_free",
            "disk_free_bytes",
            limits.disk_free * 1e6,
            "{value_mib} are free on the disk of the run (limit {limit_mib}): checkpoints may "
            "soon not fit; free some, or lower training.keep_checkpoints",
            severity="critical",
            is_lower=True,
        ),
        AlertRule(
            "checkpoint_age",
            "checkpoint_age_seconds",
            limits.checkpoint_age,
            "the newest checkpoint is {value:.0f} s old (limit {limit:g} s): a crash now would "
            "lose that much; lower training.checkpoint_seconds",
        ),
        AlertRule(
            "backup_age",
            "backup_age_seconds",
            limits.backup_age,
            "the newest confirmed backup is {value:.0f} s old (limit {limit:g} s): see temper "
            "backup status",
        ),
        AlertRule(
            "copier_failures",
            "copier_failures",
            limits.copier_failures,
            "the process that copies backups ended {value:.0f} times in a row (limit {limit:g}): "
            "nothing is copied; see temper backup status",
            severity="critical",
        ),
    ]


def gpu_rules(limits: AlertThresholds) -> list[AlertRule]:
    """The rules on each GPU, in the keys of its reading."""
    return [
        AlertRule(
            "gpu_utilization",
            "utilization_percent",
            limits.gpu_utilization,
            "{subject} is {value:.0f} % busy (limit {limit:g} %): it is fully used",
            severity="info",
            num_samples=BUSY_SAMPLES,
        ),
        AlertRule(
            "gpu_memory_percent",
            "memory_percent",
            limits.gpu_memory_percent,
            "the memory of {subject} is {value:.0f} % full (limit {limit:g} %): a longer batch may "
            "not fit; lower training.batch_size or set training.gradient_checkpointing",
            num_samples=2,
        ),
        AlertRule(
            "gpu_temperature",
            "temperature_celsius",
            limits.gpu_temperature,
            "{subject} has {value:.0f} °C (limit {limit:g} °C): it will slow down; look at its "
            "cooling",
            num_samples=2,
        ),
    ]


def training_rules(limits: AlertThresholds) -> list[AlertRule]:
    """The rules on the training's own numbers, in the fields of TrainingMetrics."""
    return [
        AlertRule(
            "training_time_per_step",
            "seconds_per_step",
            limits.training_time_per_step,
            "a step takes {value:.1f} s (limit {limit:g} s)",
            num_samples=3,
        ),
        AlertRule(
            "gradient_norm",
            "gradient_norm",
            limits.gradient_norm,
            "the norm of the gradient is {value:.3g} (limit {limit:g}): where it stays so, the"
            " training may diverge; lower training.learning_rate or training.max_grad_norm",
        ),
        AlertRule(
            "data_wait_percent",
            "data_wait_percent",
            limits.data_wait_percent,
            "{value:.0f} % of a step is waiting for data (limit {limit:g} %): raise "
            "data.num_workers or data.prefetch_factor",
            num_samples=5,
        ),
        AlertRule(
            "tied_steps",
            "num_tied_steps",
            limits.tied_steps,
            "for {value:.0f} steps all answers to each prompt have had the same rewards (limit"
            " {limit:g}): nothing is learned from them; take prompts that are neither too easy nor"
            " too hard, or rewards with more values",
        ),
    ]
