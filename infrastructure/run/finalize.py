"""The end of a run: summary.json with its seal, the report, and the backup of a finished run.

The seal contains the hashes of all files that do not change after the end of the run.
"""

import logging
from typing import Protocol, cast

from infrastructure.backup.repair.run_files_repair import REPORT_FILE, SEAL, read_seal, seal_of
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.error_place import described
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.stop_signals import StopSignal
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.report.report import write_report
from infrastructure.run.directory import RunDirectory, RunStatus
from infrastructure.run.history import history_of
from infrastructure.run.record import read_run_record
from infrastructure.run.record_types import BaseRunRecord, Continuation, Summary
from infrastructure.run.repair import hash_or_none
from infrastructure.run.replication import RunReplication
from infrastructure.run.summary_text import paths_of

log = logging.getLogger(__name__)


class RunProgress(Protocol):
    """The progress of a run. `TrainingState` has the same fields."""

    step: int
    total_steps: int
    num_tokens: int
    loss: float
    metrics: dict[str, float]
    recoveries: list[JsonObject]
    stop_message: str | None
    stop_signal: str | None


def summary_of(
    run: RunDirectory,
    progress: RunProgress,
    seconds: float,
    *,
    is_finished: bool,
    error: BaseException | None = None,
) -> Summary:
    """Return the part of summary.json that is the same for all training loops.

    Args:
        seconds: the duration of the training.
        is_finished: whether the training is complete and the model exists.
        error: the error that ended the training, if any. KeyboardInterrupt means that the user or a
            signal stopped it.
    """
    is_interrupted = isinstance(error, KeyboardInterrupt)
    is_failed = error is not None and not is_interrupted
    history = history_of(run)
    ended = RunStatus.FINISHED if is_finished else RunStatus.STOPPED
    interruption = (str(error) or "interrupted") if is_interrupted else None
    signal = error.name if isinstance(error, StopSignal) else None
    return {
        "status": RunStatus.FAILED if is_failed else ended,
        "reason": progress.stop_message or interruption,
        "signal": progress.stop_signal or signal,
        "error": None if error is None or is_interrupted else redact(_sentence(error)),
        "steps": progress.step,
        "total_steps": progress.total_steps,
        "tokens": progress.num_tokens,
        "seconds": seconds,
        "loss": progress.loss,
        "recoveries": progress.recoveries,
        "peak_memory_bytes": progress.metrics.get("memory_bytes"),
        "paths": paths_of(run.path),
        **({"history": cast(list[JsonObject], history)} if history else {}),
    }


def _sentence(error: BaseException) -> str:
    return described(error)


def record_running(run: RunDirectory, total_steps: int, first_step: int = 0) -> None:
    """Write a preliminary summary.json, which remains if the run is killed.

    The cost of earlier sessions, and the steps at which they ended, are copied from the existing
    file.

    The step from which the run resumed is also written to run.json. run.json is part of every
    backup, but summary.json of an unfinished run is not.

    Args:
        first_step: the number of completed steps if the run resumes.
    """
    earlier = read_summary(run)
    summary: Summary = {"status": RunStatus.RUNNING, "total_steps": total_steps}
    if cost := earlier.get("cost"):
        summary["cost"] = cost
    record = read_run_record(run)
    went_on = max(earlier.get("went_on", []), record.get("went_on", []), key=len)
    newest = _continuation(earlier, record, first_step)
    if newest is not None:
        went_on = [*went_on, newest]
    if went_on:
        summary["went_on"] = went_on
    write_record(run.summary_file, summary)
    if newest is not None and record:
        kept = {key: value for key, value in record.items() if key != "brought_back"}
        write_record(run.run_file, {**kept, "went_on": went_on})


def _continuation(earlier: Summary, record: BaseRunRecord, first_step: int) -> Continuation | None:
    """Return the entry about this resume for summary.json; None if the run has just started."""
    if (back := record.get("brought_back")) is not None:
        return {"step": first_step, "was_killed": back["was_killed"], "place": back["place"]}
    if "status" in earlier:
        return {"step": first_step, "was_killed": earlier["status"] == RunStatus.RUNNING}
    return None


def write_summary(run: RunDirectory, summary: Summary) -> None:
    """Write summary.json. Numbers that JSON cannot represent are written as text.

    Raises:
        OSError: if the disk fails.
    """
    earlier = read_summary(run).get("went_on")
    kept = {"went_on": earlier} if earlier else {}
    write_record(run.summary_file, spell_numbers({**kept, **summary}))


def read_summary(run: RunDirectory) -> Summary:
    """Return the contents of summary.json; empty if it is missing or damaged."""
    try:
        return _read_summary(run)
    except (OSError, DamagedFileError):
        return {}


def _read_summary(run: RunDirectory) -> Summary:
    return cast(Summary, read_record(run.summary_file))


def seal(run: RunDirectory, summary: Summary) -> None:
    """Write summary.json with the hashes of all files that no longer change.

    If this fails, no result is lost, because summary.json already exists without the hashes.
    """
    try:
        summary["paths"] = paths_of(run.path)
        summary[SEAL] = seal_of(run.path)
        write_summary(run, summary)
    except OSError as error:
        log.warning(phrase("run.summary_not_updated", summary_file=run.summary_file, error=error))


def write_report_of(run: RunDirectory) -> None:
    """Write the report page. If this fails, only log the error, because the run is finished."""
    try:
        write_report(run.path)
    except Exception as failure:
        log.warning(phrase("run.report_not_written", file=REPORT_FILE, error=repr(failure)))


def has_sealed_report(run: RunDirectory) -> bool:
    """Return whether the report written at the end of the run exists and is unchanged."""
    sealed = read_seal(run.path).get(REPORT_FILE)
    return sealed is not None and hash_or_none(run.path / REPORT_FILE) == sealed


def complete_finished(run: RunDirectory, copies: RunReplication, seconds: float) -> Summary:
    """Wait at most `seconds` until the destination has confirmed a finished run. Then end the
    copier.

    Returns:
        The contents of summary.json with the current status of the backup.

    Raises:
        OSError, DamagedFileError: if summary.json cannot be read or written.
    """
    summary = _read_summary(run)
    summary["paths"] = paths_of(run.path)  # the run may have been moved

    def record() -> None:
        summary["backup"] = copies.facts()
        write_summary(run, summary)
        write_report_of(run)
        seal(run, summary)

    if not copies.has_place:
        summary["backup"] = {**summary.get("backup", {}), **copies.facts()}
        return summary
    try:
        copies.complete(seconds, record)
        record()
    finally:
        copies.close()
    return summary
