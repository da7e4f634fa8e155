"""The search for the settings that make a run fastest on this machine.

Temper applies none of these settings itself, because some, such as the precision, change the
results of training: the search returns the flags that set them. The number of examples in an
optimizer step does not change.
"""

from collections.abc import Callable, Mapping
from typing import Required, TypedDict

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.merging.precedence import GivenValue, Layer
from infrastructure.config.sources.flags import as_flags
from infrastructure.core.integers import ceil_div
from infrastructure.core.messages import Setting as Named
from infrastructure.core.messages import phrase
from infrastructure.data.samples import use_sample_data
from infrastructure.features.tune.trials import TRIED, TuningTrials, worker_counts
from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration
from infrastructure.optimization.device_errors import is_out_of_memory
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.pipeline_optimizer import (
    CLEARLY_FASTER,
    PipelineOptimizer,
    Tried,
)
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import ACCUMULATION, BATCH_SIZE, BatchPlan

WORKERS_PAY = 1.1  # a process takes memory, so it must be clearly faster

ReportLine = Callable[[str], None]


class TuningResults(TypedDict, total=False):
    """The results of `find_fastest`. `settings` and `tried` are always present."""

    settings: Required[dict[str, object]]
    tried: Required[list[dict[str, object]]]
    batch: dict[str, object]
    learning_rate: dict[str, float | None]
    flags: str


def find_fastest(
    config: DeploymentConfig, with_learning_rate: bool = False, report: ReportLine = print
) -> TuningResults:
    """Measure which settings make this run fastest on this machine. Keep settings that were given.

    Args:
        with_learning_rate: also find the highest usable learning rate.
        report: a function that is called with a line for each result.

    Returns:
        The fastest settings as `settings`, by canonical key, the same settings as command-line
        `flags`, and all trials as `tried`.

    Raises:
        ValueError: if the run cannot start with this configuration.
    """
    use_sample_data(config)
    results: TuningResults = {"settings": {}, "tried": []}
    given, config = config, _with_batch(config, results, report)
    decided: dict[str, object] = {}
    if given.training.batch_size == "auto":  # a run would choose the same
        given, decided = config, dict(results["settings"])
    trials, as_given = TuningTrials(config), TuningTrials(given)
    trainer = trials.trainer({})
    settings = _with_pipeline(trials, trainer, results, report)
    if results["settings"] != decided and not _is_faster(as_given, results, report):
        config, settings = given, {}
        trials, results["settings"] = as_given, decided
    _with_workers(trials, results, report)
    if with_learning_rate:
        _with_learning_rate(TuningTrials(config.changed(_as_settings(settings))), results, report)
    results["flags"] = as_flags(results["settings"])
    return results


def alternatives(config: DeploymentConfig, trainer: EnhancedTrainer) -> dict[str, list[object]]:
    """Return the alternative values to try, for each setting that the user did not give."""
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
    """Return the configuration with the fastest micro-batch, unless the batch size was given.

    The number of examples in an optimizer step stays the same, because it affects the trained
    model. With `auto`, the batch size is also chosen, as in a run.
    """
    if config.training.batch_size == "auto":
        plan = TuningTrials(config).trainer({}).batch_plan()
        for line in plan.lines():
            report(line)
    elif any(config.source(key).layer is not Layer.DEFAULT for key in (BATCH_SIZE, ACCUMULATION)):
        return config
    else:
        plan = _as_many_in_a_step(TuningTrials(config).trainer({}), report)
    if plan.micro_batch_size != config.training.batch_size:
        results["settings"] |= plan.resolved()
    results["batch"] = {"origin": plan.origin, "trials": list(plan.trials)}
    return config.changed(_as_settings(plan.resolved()))


def _as_many_in_a_step(trainer: EnhancedTrainer, report: ReportLine) -> BatchPlan:
    """Return the fastest split of the configured optimizer step into micro-batches.

    The configured split is kept unless another is clearly faster.
    """
    configured = trainer.batch_plan()
    whole = configured.global_batch_size
    choice = trainer.cost_measurement().search(
        whole, lambda size: ceil_div(whole, size), beside=configured.micro_batch_size
    )
    report(
        phrase(
            "tune.tuned_micro_batch",
            key=Named(BATCH_SIZE),
            micro_batch=choice.size,
            global_batch=whole,
            reason=choice.reason or phrase("tune.whole_step_at_once", size=whole),
        )
    )
    for line in choice.lines():
        report(f"  {line}")
    return BatchPlan(
        choice.size, ceil_div(whole, choice.size), choice.reason, tuple(choice.lines())
    )


def _is_faster(as_given: TuningTrials, results: TuningResults, report: ReportLine) -> bool:
    """Return whether the tuned settings are faster than the configured ones.

    Both settings are measured again, one right after the other, because the speed of a machine
    changes over minutes.
    """
    num_tokens = _num_tokens(as_given.trainer({}))
    try:
        before = as_given.measure({})
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        report(phrase("tune.configured_out_of_memory"))
        return True
    after = as_given.measure(results["settings"])
    is_faster = after.seconds_for(num_tokens) < before.seconds_for(num_tokens)
    verdict = "" if is_faster else phrase("tune.not_faster")
    report(
        phrase(
            "tune.compared_again",
            configured=before.tokens_per_second,
            tuned=after.tokens_per_second,
            verdict=verdict,
        )
    )
    return is_faster


def _num_tokens(trainer: EnhancedTrainer) -> int:
    """Estimate the number of tokens in the whole run from its first examples."""
    loop, usual = trainer.prepare().loop, trainer.cost_measurement().usual
    tokens_per_step = trainer.adapter.count_tokens(usual) * loop.global_batch_size
    return loop.total_steps * (tokens_per_step // max(1, len(usual)))


def _with_pipeline(
    trials: TuningTrials, trainer: EnhancedTrainer, results: TuningResults, report: ReportLine
) -> dict[str, object]:
    """Return the changes of precision, compilation, checkpointing and data loading that help."""
    plan = trainer.batch_plan()
    num_tokens = _num_tokens(trainer)
    basis = phrase("tune.with_batch" if results["settings"] else "tune.as_configured")
    basis += phrase(
        "tune.batch_basis",
        micro_batch_size=plan.micro_batch_size,
        global_batch_size=plan.global_batch_size,
        precision=trainer.precision.name,
    )

    def record(tried: Tried) -> None:
        report(describe(tried, basis))
        results["tried"].append(_as_json(tried))

    optimizer = PipelineOptimizer(
        measure=trials.measure,
        budget_bytes=MemoryBudget.of(trials.config).size_bytes(trainer.device),
        num_tokens=num_tokens,
        report=record,
    )
    settings = optimizer.run(alternatives(trials.config, trainer))
    results["settings"] |= settings
    return settings


def _with_workers(trials: TuningTrials, results: TuningResults, report: ReportLine) -> None:
    """Find the fastest number of data workers. More workers must be clearly faster than fewer."""
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
    """Find the highest usable learning rate with a range test."""
    rates = trials.learning_rates()
    results["learning_rate"] = {"suggested": rates.suggested, "explodes_at": rates.explodes_at}
    for line in rates.lines():
        report(line)
    if rates.suggested is not None:
        results["settings"]["training.learning_rate"] = float(f"{rates.suggested:.2g}")


def describe(tried: Tried, basis: str = "as configured") -> str:
    """Describe a trial in one line. `basis` describes the trial without changes."""
    name = f"{Named(tried.key, str(plain(tried.value)))}" if tried.key else basis
    if tried.measured is None:
        return f"{name}: not here: {tried.refusal}"
    text = (
        f"{name}: {tried.measured.tokens_per_second:,.0f} tokens/s,"
        f" {format_bytes(tried.measured.peak_bytes)}"
    )
    return f"{text}: {tried.refusal or _verdict(tried)}" if tried.key else text


def _verdict(tried: Tried) -> str:
    """Return a phrase that says whether a trial's value is used, and if not, why."""
    measured, best = tried.measured, tried.best
    if tried.taken or measured is None or best is None:
        return "taken"
    if measured.tokens_per_second <= CLEARLY_FASTER * best.tokens_per_second:
        return (
            "no faster" if measured.tokens_per_second <= best.tokens_per_second else "hardly faster"
        )
    return phrase(
        "tune.setup_too_slow",
        setup_time=format_duration(measured.setup_seconds),
        run_time=format_duration(best.seconds_for(tried.num_tokens)),
    )


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


def _as_settings(values: Mapping[str, object]) -> list[GivenValue]:
    return [GivenValue(key, value, TRIED) for key, value in values.items()]
