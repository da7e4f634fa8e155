"""The end of a run that finished, stopped or failed: its summary, its report, its cleanup."""

import gc
import shutil
import time
from dataclasses import dataclass, field

import torch

from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.agent import left_to_agent
from infrastructure.core.console import Count, Report
from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.deployment.forecast import RunForecast
from infrastructure.deployment.run_record import summarise
from infrastructure.evaluation.held_out import HeldOut, measure, trained_model
from infrastructure.evaluation.plain_reading import check_saved
from infrastructure.models.model_path import EMBEDDED
from infrastructure.monitoring.drawing.formatting import format_duration
from infrastructure.run.advice import advice_at_end
from infrastructure.run.cost import cost_of
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary, seal, write_report_of, write_summary
from infrastructure.run.record_types import Summary
from infrastructure.run.replication import RunReplication
from infrastructure.run.summary_text import closing_lines, cost_lines
from infrastructure.run.timings import Stages
from infrastructure.training.checkpoints.best_weights import take_best
from infrastructure.training.core.state import StopReason
from infrastructure.training.enhanced_trainer import EnhancedTrainer


@dataclass
class RunFinalizer:
    """The actions at the end of a run: save, evaluate, wait for backups, report.

    Args:
        before: the evaluation from before the first step.
        patience: how long the end of the run waits for its backups.
        report: a function that shows a line to the user.
        price_per_hour: the price of this machine per hour, or None if not given.
        is_result_shown: whether another display shows the result.
    """

    run: RunDirectory
    trainer: EnhancedTrainer
    before: HeldOut
    copies: RunReplication
    forecast: RunForecast
    stages: Stages
    patience: BackupConfig
    report: Report
    price_per_hour: str | None = None
    is_result_shown: bool = False
    started: float = field(default_factory=time.monotonic)
    _seconds: float | None = None
    _summary: Summary | None = None
    _final_step: int | None = None
    _last_lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seconds_before = read_summary(self.run).get("cost", {}).get("seconds", 0.0)

    def finish(self) -> Summary:
        """Save the trained model, evaluate it, and wait for its backups."""
        with self.stages.stage("save"):
            self._final_step = self._take_best()
            self.trainer.adapter.save(self.run.final)
            self._read_back()
            for problem in self.trainer.strategy.run_parts(self.trainer).save(self.run.path):
                self.report(f"note: {problem}")
        self.report(phrase("deployment.evaluating_trained_model"))
        count = Count(phrase("deployment.evaluating_trained_model_bar"), "answers")
        with self.stages.stage("evaluate"), self.report.waiting(count.words):
            after = measure(self.trainer, count)
        summary = self._close(after)
        if self.copies.has_place:
            with self.stages.stage("back up"):
                self.copies.complete(self.patience.finish_seconds, lambda: self._close(after))
            summary = self._close(after)
        self._last_lines = closing_lines(self.run.path, summary, self.is_result_shown)
        if (unsafe := self.copies.problem()) is not None:
            self._last_lines.append(unsafe)
        return summary

    def _take_best(self) -> int | None:
        """If so configured, load the best weights. Return their step; None for the last step."""
        trainer, state = self.trainer, self.trainer.state
        assert state is not None
        if trainer.adapter.on_disk or not trainer.training_config.ends_with_best:
            return None
        step = take_best(trainer.initialize_model(), self.run.checkpoints, state.step)
        return None if step == state.step else step

    def _read_back(self) -> None:
        """Verify that the saved model, loaded by plain transformers, answers like the trained
        model.

        Raises:
            CheckpointError: if it does not. The saved model is then removed; the last checkpoint
                has the trained weights.
        """
        trained = trained_model(self.trainer)
        if trained is None:
            return
        try:
            for note in check_saved(self.run.final, trained):
                self.report(note)
        except CheckpointError:
            shutil.rmtree(self.run.final)
            raise

    def stopped(self, error: BaseException | None = None) -> Summary:
        """End an unfinished run. Report why it stopped, how to resume, and what is saved."""
        summary = self._close(error=error)
        if self.copies.has_place:
            assert self.trainer.state is not None
            reason, patience = self.trainer.state.stop_reason, self.patience.emergency_seconds
            with self.stages.stage("back up"):
                self.copies.wait(self.trainer.schedule.seconds_to_copy(reason, patience))
            summary = self._close(error=error)
        self._last_lines = [
            phrase(
                "deployment.stopped_at_step",
                step=summary["steps"],
                reason=summary["reason"],
                run=self.run.path,
                backup=self.copies.line(),
            ),
            *self._deadline_lines(),
            *cost_lines(summary),
        ]
        return summary

    def _deadline_lines(self) -> list[str]:
        """Return a note that `training.deadline` will apply again when the run resumes.

        In a notebook, there is no note, because the deadline comes from the runtime.
        """
        state, seconds = self.trainer.state, self.trainer.training_config.deadline
        is_stopped = state is not None and state.stop_reason is StopReason.DEADLINE
        if not is_stopped or seconds is None or in_notebook_kernel():
            return []
        return [phrase("deployment.deadline_applies_again", duration=format_duration(seconds))]

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the run, and its details."""
        self._close(error=error)

    def clean_up(self) -> None:
        """Stop the helper processes and free the GPU's memory, however the run ended."""
        with self.stages.stage("clean up"):
            self.copies.close()
            gc.collect()
            if self.trainer.device.type == "cuda":
                torch.cuda.empty_cache()
        if self._summary is None:
            return
        self._summary["stages"] = self.stages.records()
        seal(self.run, self._summary)

    def show_end(self) -> None:
        """Show how the run ended. This is the last action of a run."""
        if self._summary and left_to_agent(self._last_lines, self._summary["signal"]):
            return
        for line in self._last_lines:
            self.report(line)

    def _cost(self) -> Summary:
        """Return the cost of the run so far, if a price is known."""
        return cost_of(self.price_per_hour, self._seconds_before + self.stages.total_seconds())

    def _advice(self, after: HeldOut | None) -> Summary:
        """Return advice that follows from the final metrics; empty if the run was not finished."""
        state = self.trainer.state
        if after is None or state is None:
            return {}
        model = self.trainer.model_config
        advice = advice_at_end(
            self.run,
            self.trainer.training_config.best_metric,
            self._final_step or state.step,
            state.position.epoch,
            self.before.table_row(),
            after.table_row(),
            best_is_greater=state.best_is_greater,
            is_cut_short=self.trainer.training_config.max_steps == state.step,
            freezes_new_weights=model.name == EMBEDDED and model.lora_config is not None,
        )
        return {"advice": advice} if advice else {}

    def _stop_the_clock(self) -> float:
        """Return the seconds that training took. The first call stops the clock."""
        self._seconds = self._seconds or time.monotonic() - self.started
        return self._seconds

    def _close(self, after: HeldOut | None = None, error: BaseException | None = None) -> Summary:
        """Write summary.json and the report, and return the summary."""
        seconds = self._stop_the_clock()
        self._summary = {
            **summarise(self.run, self.trainer, seconds, self.before, after, error),
            **({} if self._final_step is None else {"final_step": self._final_step}),
            **self._advice(after),
            "forecast": self.forecast.compared(seconds) if after is not None else [],
            **self._cost(),
            "backup": self.copies.facts(),
            "stages": self.stages.records(),
        }
        write_summary(self.run, self._summary)
        write_report_of(self.run)
        return self._summary
