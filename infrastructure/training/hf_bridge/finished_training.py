"""Completion of a finished run of a Trainer, if its outputs are incomplete."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.run.directory import RunStatus
from infrastructure.run.finalize import (
    has_sealed_report,
    read_summary,
    seal,
    write_report_of,
    write_summary,
)
from infrastructure.run.record_types import Summary
from infrastructure.training.hf_bridge.trainer_run import TrainerRun
from infrastructure.training.hf_bridge.trainer_state import TrainerParts


class FinishedTraining:
    """A run that has trained all its steps, but whose report or backup may be incomplete.

    Args:
        first: the checkpoint with which this call of `Trainer.train` began.
        stack: holds the run's lock; closed at the end.
    """

    def __init__(
        self, run: TrainerRun, parts: TrainerParts, first: Path | None, stack: ExitStack
    ) -> None:
        self.run, self.parts, self.first, self.stack = run, parts, first, stack

    def metrics(self) -> dict[str, float]:
        """Return the final metrics that the Trainer logged at its end; empty if it logged none."""
        logs = reversed(self.parts.state.log_history)
        last = next((entry for entry in logs if "train_runtime" in entry), {})
        return {name: value for name, value in last.items() if name != "step"}

    def end(self) -> None:
        """Write missing outputs, and wait until the backup destination confirms everything.

        Raises:
            OSError: this machine's disk returns an error.
            CopyNotConfirmedError: the backup is not confirmed.
        """
        run, steps = self.run, self.parts.state
        try:
            run.save_model(self.parts.model)
            if not run.is_recorded_finished():
                summary: Summary = {
                    "status": RunStatus.FINISHED,
                    "steps": steps.global_step,
                    "total_steps": steps.max_steps,
                }
                write_summary(run.files, summary)
            if not has_sealed_report(run.files):
                write_report_of(run.files)
                seal(run.files, read_summary(run.files))
            run.copies.compare_anew()
            run.complete()
            if run.copies.has_place and not run.is_whole:  # otherwise its last lines report it
                run.report(run.copies_line())
        finally:
            self._release()

    def break_off(self, error: BaseException) -> None:
        """Release the run after an exception. The run stays finished."""
        self._release()

    def _release(self) -> None:
        self.run.copies.close()
        self.stack.close()


class NothingToTrain:
    """A patch that makes a call of `Trainer.train` return without a step, an evaluation or a log.

    Without the patch, a Trainer that resumes from its last step would do one step too many and
    report the metrics of that step.

    Args:
        metrics: the run's final metrics, which the call returns again.
    """

    def __init__(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        if not hasattr(trainer, "_run_epoch"):
            raise InputError("trainer.own_loop_not_skippable")
        self.trainer, self.metrics = trainer, dict(metrics)
        self._instead = {"_run_epoch": _nothing, "_evaluate": _nothing, "log": self._log}
        for name, method in self._instead.items():
            setattr(trainer, name, method)
        steps = max(trainer.state.global_step, 1)
        trainer._total_loss_scalar = self.metrics.get("train_loss", math.nan) * steps

    def end(self) -> None:
        """Restore the Trainer's original methods."""
        for name, method in self._instead.items():
            if self.trainer.__dict__.get(name) == method:
                delattr(self.trainer, name)

    def _log(self, metrics: dict[str, float], *_: object, **__: object) -> None:
        """Replace the metrics that the Trainer logs for this call with the run's final metrics."""
        metrics.clear()
        metrics.update(self.metrics)


def _nothing(*_: object, **__: object) -> None:
    return
