"""`temper quantum compare`: compare runs with the sampler, with baselines, and with neither.

All runs have the same number of steps. Finished runs are not trained again, so an interrupted
comparison resumes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer, Setting, Source
from infrastructure.config.schema import schema_of
from infrastructure.core.checksums import write_record
from infrastructure.core.messages import phrase
from infrastructure.data.samples import use_sample_data
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.features.quantum.config import (
    AT_ANY_COST,
    BLOCK_SELECTION,
    DATA_SELECTION,
    QUANTUM,
    RANK_ALLOCATION,
    SAMPLER,
)
from infrastructure.features.quantum.records import COMPARISON_FILE
from infrastructure.features.quantum.training.step_records import SKIPPED, read_records
from infrastructure.monitoring.drawing.formatting import format_duration, format_number
from infrastructure.monitoring.report.report import REPORT_FILE, write_report
from infrastructure.run.record_types import Summary

COMPARED = Source(Layer.KEYWORD, "temper quantum compare")
NONE = "none"  # no quantum step
# What answers instead of a sampler: the usual baseline, and random choice.
PLAIN = {
    DATA_SELECTION: ("greedy", "random"),
    BLOCK_SELECTION: ("gradient_norm", "random"),
    RANK_ALLOCATION: ("diagonal_fisher", "random"),
}
BOUND = "quantum.max_overhead_percent"
# Settings that have no effect without a sampler.
OF_A_SAMPLER = tuple(f"quantum.{name}" for name in ("solver", "fallback", "timeout"))


class Row(TypedDict):
    """The result of one run of a comparison. `run` is its directory."""

    answer: str
    run: str
    steps: int
    eval_loss: float | None
    seconds: float | None
    quantum_seconds: float
    energy: float | None


def compare_quantum_steps(config: DeploymentConfig) -> list[Row]:
    """Train with the sampler, with baselines and with neither, and print a table of the results.

    Returns:
        A row for each run. Runs that finished before are not trained again.
    """
    rows, _ = compared(config)
    print("\n".join(table_of(rows)))
    return rows


def compared(
    config: DeploymentConfig, report: Callable[[str], None] = print
) -> tuple[list[Row], Summary | None]:
    """Train the runs of a comparison. Return a row for each, and a stopped run's summary or None.

    The rows are stored in each run, so that its report shows them. One line is printed before each
    run and one after it. All other output of a run is in its report.

    Raises:
        ConfigurationError: if a run skipped every quantum step, so that there is nothing to
            compare.
    """
    config = with_quantum_step(config)
    if config.source(BOUND).layer is Layer.DEFAULT:
        report(phrase("quantum.comparison_lifts_bound"))
        config = config.changed([Setting(BOUND, AT_ANY_COST, COMPARED)])
    config.check_supported()  # before an answer that is not available is replaced
    rows: list[Row] = []
    steps: int | None = None
    answers = (SAMPLER, *PLAIN[config.value("quantum.problem")], NONE)
    for number, answer in enumerate(answers, 1):
        report(
            phrase(
                "quantum.comparison_progress",
                number=number,
                total=len(answers),
                answer=_what(answer),
            )
        )
        own = answered_by(config, answer, steps)
        summary = TrainingDeployment(own, say=lambda _: None).run()
        if summary["status"] != "finished":
            return rows, summary
        if answer != NONE:
            refuse_skipped(Path(summary["paths"]["run"]))
        steps = steps or summary["steps"]
        rows.append(row_of(answer, summary))
        page = Path(rows[-1]["run"]) / REPORT_FILE
        report(phrase("quantum.comparison_run_done", steps=steps, report=page))
    for row in rows:
        run = Path(row["run"])
        write_record(run / COMPARISON_FILE, {"rows": rows})
        write_report(run)
    return rows, None


def refuse_skipped(run: Path) -> None:
    """Check that a run of the comparison did not skip all of its quantum steps.

    Raises:
        ConfigurationError: if it did; the message gives the reason why they were skipped.
    """
    records = read_records(run)
    if records and all(record["outcome"] == SKIPPED for record in records):
        raise ConfigurationError(
            "quantum.comparison_steps_skipped",
            run=run,
            reason=records[-1]["why"],
        )


def _what(answer: str) -> str:
    if answer == NONE:
        return phrase("quantum.without_quantum_step")
    if answer == SAMPLER:
        return phrase("quantum.chosen_by_solver")
    return phrase("quantum.chosen_by_method", method=answer.replace("_", " "))


def with_quantum_step(config: DeploymentConfig) -> DeploymentConfig:
    """Enable the quantum step in a configuration. Use the sample data if no data is given."""
    use_sample_data(config)
    if QUANTUM in config.training.extensions:
        return config
    enabled = [*config.training.enabled_extensions, QUANTUM]
    return config.changed([Setting("training.enabled_extensions", enabled, COMPARED)])


def answered_by(config: DeploymentConfig, answer: str, steps: int | None) -> DeploymentConfig:
    """Return the configuration with another method of choosing, and with this number of steps."""
    changes: dict[str, object] = {} if steps is None else {"training.max_steps": steps}
    if answer == NONE:
        others = [name for name in config.training.enabled_extensions if name != QUANTUM]
        changes |= {"training.enabled_extensions": others, "training.optimization_frequency": None}
        changes |= _undone(config, ("quantum.",))
    elif answer == SAMPLER:
        changes |= _undone(config, ("quantum.answer",))
    else:
        no_use = (*OF_A_SAMPLER, "quantum.background")
        changes |= {"quantum.answer": answer, **_undone(config, no_use)}
    return config.changed([Setting(key, value, COMPARED) for key, value in changes.items()])


def _undone(config: DeploymentConfig, keys: tuple[str, ...]) -> dict[str, object]:
    """Return the default values of changed settings, because unused settings are rejected."""
    fields = schema_of(DeploymentConfig).fields
    defaults = {key: spec.default for key, spec in fields.items() if key.startswith(keys)}
    return {key: value for key, value in defaults.items() if config.value(key) != value}


def row_of(answer: str, summary: Summary) -> Row:
    """Collect the result of one run from its summary and records."""
    run = Path(summary["paths"]["run"])
    records = read_records(run)
    loss = (summary.get("after") or {}).get("eval_loss")
    return {
        "answer": QUANTUM if answer == SAMPLER else answer,
        "run": str(run),
        "steps": summary["steps"],
        # Otherwise a name, such as NaN.
        "eval_loss": loss if isinstance(loss, int | float) else None,
        "seconds": summary.get("seconds"),
        "quantum_seconds": sum(record.get("seconds", 0.0) for record in records),
        "energy": records[-1].get("energy") if records else None,
    }


def table_of(rows: list[Row]) -> list[str]:
    """Format the rows as a table, with a caution that each result is of a single run."""
    lines = [f"{'trained on':<16}{'held-out loss':>14}{'steps':>8}{'quantum steps':>15}{'all':>12}"]
    for row in rows:
        loss = "–" if row["eval_loss"] is None else format_number(row["eval_loss"])
        quantum, total = (
            format_duration(row[name] or 0.0) for name in ("quantum_seconds", "seconds")
        )
        lines.append(f"{row['answer']:<16}{loss:>14}{row['steps']:>8,}{quantum:>15}{total:>12}")
    return [*lines, phrase("quantum.comparison_of_single_runs")]
