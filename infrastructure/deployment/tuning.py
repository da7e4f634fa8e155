"""Measures which settings make this training fastest on this machine.

What changes the numbers of a training (its precision, the size of its batch) is only ever proposed:
the flags that ask for it are what it finds.
"""

import shlex
from collections.abc import Callable, Mapping
from typing import Required, TypedDict

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.merging.precedence import Layer, Setting
from infrastructure.config.sources.flags import flag_words
from infrastructure.deployment.tuning_trials import TRIED, TuningTrials, worker_counts
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.pipeline_optimizer import PipelineOptimizer, Tried
from infrastructure.training.core.error_handlers import is_out_of_memory
from infrastructure.training.data.samples import use_sample_data
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import BATCH_SIZE

WORKERS_PAY = 1.1  # a process takes memory, so it must read clearly faster

ReportLine = Callable[[str], None]


class TuningResults(TypedDict, total=False):
    """What was measured; `settings` and `tried` are always there."""

    settings: Required[dict[str, object]]
    tried: Required[list[dict[str, object]]]
    batch: dict[str, object]
    learning_rate: dict[str, float | None]
    flags: str


def find_fastest(
    config: DeploymentConfig, with_learning_rate: bool = False, report: ReportLine = print
) -> TuningResults:
    """Measure which settings make this training fastest here; nobody's own setting is changed.

    Args:
        with_learning_rate: find out how high the learning rate may be, too.
        report: is told each result, in a line.

    Returns:
        `settings` by canonical key, as `DeploymentConfig` takes them, the same as `flags`, and
        what was `tried`.

    Raises:
        ValueError: the training cannot be started as it is configured.
    """
    use_sample_data(config)
    results: TuningResults = {"settings": {}, "tried": []}
    config = _with_batch(config, results, report)
    trials = TuningTrials(config)
    trainer = trials.trainer({})
    settings = _with_pipeline(trials, trainer, results, report)
    _with_workers(trials, results, report)
    if with_learning_rate:
        _with_learning_rate(TuningTrials(config.changed(_as_settings(settings))), results, report)
    results["flags"] = shlex.join(flag_words(results["settings"]))
    return results


def alternatives(config: DeploymentConfig, trainer: EnhancedTrainer) -> dict[str, list[object]]:
    """What is tried besides what is there; nothing that somebody has given."""
    on_gpu = trainer.device.type == "cuda"
    precisions = ["bf16", "fp16", "fp32"] if on_gpu else ["bf16", "fp32"]
    tried: dict[str, list[object]] = {
        "training.mixed_precision": [name for name in precisions if name != trainer.precision.name],
        "training.gradient_checkpointing": [True],
        "training.compile_mode": ["default"],
        "data.prefetch_factor": [4, 8],
        "data.pin_memory": [False] if on_gpu else [],
    }
    return {key: v for key, v in tried.items() if config.source(key).layer is Layer.DEFAULT and v}


def _with_batch(
    config: DeploymentConfig, results: TuningResults, report: ReportLine
) -> DeploymentConfig:
    """The configuration with the batch that is fastest, unless somebody has given one."""
    given = config.source(BATCH_SIZE).layer is not Layer.DEFAULT
    if given and config.training.batch_size != "auto":
        return config
    auto = config.changed([Setting(BATCH_SIZE, "auto", TRIED)])
    plan = TuningTrials(auto).trainer({}).batch_plan()
    for line in plan.lines():
        report(line)
    results["settings"] |= plan.resolved()
    results["batch"] = {"origin": plan.origin, "trials": list(plan.trials)}
    return config.changed(_as_settings(plan.resolved()))


def _with_pipeline(
    trials: TuningTrials, trainer: EnhancedTrainer, results: TuningResults, report: ReportLine
) -> dict[str, object]:
    """The changes of precision, compiling, checkpointing and feeding that pay."""
    loop = trainer.prepare()
    tokens_per_step = (
        trainer.adapter.count_tokens(trainer.cost_measurement().usual) * loop.global_batch_size
    )
    tokens_per_step //= max(1, len(trainer.cost_measurement().usual))

    def record(tried: Tried) -> None:
        report(describe(tried))
        results["tried"].append(_as_json(tried))

    optimizer = PipelineOptimizer(
        measure=trials.measure,
        budget_bytes=MemoryBudget.of(trials.config).size_bytes(trainer.device),
        num_tokens=loop.total_steps * tokens_per_step,
        is_out_of_memory=is_out_of_memory,
        report=record,
    )
    settings = optimizer.run(alternatives(trials.config, trainer))
    results["settings"] |= settings
    return settings


def _with_workers(trials: TuningTrials, results: TuningResults, report: ReportLine) -> None:
    """How many processes prepare data fastest; fewer where more are not clearly faster."""
    if trials.config.source("data.num_workers").layer is not Layer.DEFAULT:
        return
    best, fastest = 0, 0.0
    for count in worker_counts():
        speed = trials.rows_per_second(count)
        report(f"data.num_workers {count}: {speed:,.0f} rows/s prepared")
        results["tried"].append(
            {"key": "data.num_workers", "value": count, "rows_per_second": speed}
        )
        if speed > WORKERS_PAY * fastest:
            best, fastest = count, speed
    results["settings"]["data.num_workers"] = best


def _with_learning_rate(trials: TuningTrials, results: TuningResults, report: ReportLine) -> None:
    """How high the learning rate may be, by a range test."""
    rates = trials.learning_rates()
    results["learning_rate"] = {"suggested": rates.suggested, "explodes_at": rates.explodes_at}
    for line in rates.lines():
        report(line)
    if rates.suggested is not None:
        results["settings"]["training.learning_rate"] = float(f"{rates.suggested:.2g}")


def describe(tried: Tried) -> str:
    """A line on one trial."""
    name = f"{tried.key} {plain(tried.value)}" if tried.key else "as configured"
    if tried.measured is None:
        return f"{name}: not here: {tried.refusal}"
    text = (
        f"{name}: {tried.measured.tokens_per_second:,.0f} tokens/s,"
        f" {format_bytes(tried.measured.peak_bytes)}"
    )
    verdict = tried.refusal or ("taken" if tried.taken else "does not pay")
    return text if not tried.key else f"{text}: {verdict}"


def _as_json(tried: Tried) -> dict[str, object]:
    measured = tried.measured
    speed = None if measured is None else measured.tokens_per_second
    peak = None if measured is None else measured.peak_bytes
    return {
        "key": tried.key,
        "value": tried.value,
        "tokens_per_second": speed,
        "peak_bytes": peak,
        "refusal": tried.refusal,
        "taken": tried.taken,
    }


def _as_settings(values: Mapping[str, object]) -> list[Setting]:
    return [Setting(key, value, TRIED) for key, value in values.items()]
