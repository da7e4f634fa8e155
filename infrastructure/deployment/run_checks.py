"""The checks before a run, which are recorded in its `checks.json`."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console import details
from infrastructure.core.files import write_json
from infrastructure.core.messages import phrase
from infrastructure.monitoring.records.run_reader import CHECKS_FILE, read_rounds
from infrastructure.testing.preflight import preflight
from infrastructure.testing.results import CheckResult, lines_of, verdict
from infrastructure.training.enhanced_trainer import EnhancedTrainer

MAX_ROUNDS = 100

log = logging.getLogger(__name__)


def checked_before(
    config: DeploymentConfig,
    trainer: EnhancedTrainer,
    report: Callable[[str], None],
    has_begun: bool = False,
) -> list[CheckResult]:
    """Run the quick checks if they are enabled, and show warnings and the verdict.

    Args:
        has_begun: whether the run has trained before and now resumes.

    Raises:
        PreflightError: if a check failed; the run must not start.
    """
    if not config.enable_testing:
        return []
    if trainer.sharding is not None:
        report(phrase("deployment.sharded_model_not_checked"))
        return []
    results = preflight(trainer, Path(config.output_dir), has_begun)
    worth_telling = [result for result in results if result.status == "warn"]
    for line in lines_of(worth_telling)[1:-1]:
        report(line)
    report(phrase("deployment.checks_line", verdict=_verdict(results)))
    for result in results:
        if result.status == "skipped":
            details(report)(f"Not checked: {result.name}: {result.text}")
    return results


def _verdict(results: Sequence[CheckResult]) -> str:
    """Return the verdict on the checks, without the skipped ones."""
    return verdict([result for result in results if result.status != "skipped"])


def keep_round(run_directory: Path, step: int, results: Sequence[CheckResult]) -> None:
    """Append the results of a round of checks to checks.json. If that fails, only log the error."""
    if not results:
        return
    one = {
        "step": step,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "verdict": _verdict(results),
        "checks": [result.to_dict() for result in results],
    }
    try:
        write_json(run_directory / CHECKS_FILE, [*read_rounds(run_directory), one][-MAX_ROUNDS:])
    except OSError as error:
        file = run_directory / CHECKS_FILE
        log.warning(phrase("deployment.file_not_written", file=file, error=error))
