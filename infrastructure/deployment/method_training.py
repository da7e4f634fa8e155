"""The training of a run by TRL, which `TrainingDeployment` uses if `training.method` is not sft."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import method_named
from infrastructure.core.console import Report
from infrastructure.core.errors import CopyNotConfirmedError
from infrastructure.core.kept_traceback import TRACEBACK_FILE, traceback_kept_in
from infrastructure.core.messages import phrase
from infrastructure.deployment.forecast import MethodForecast
from infrastructure.deployment.run_finalizer import record_rows_of
from infrastructure.evaluation.plain_reading import NUM_QUESTIONS, Trained, check_saved
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.drawing.quantity_names import HELD_OUT, RANKING
from infrastructure.run.advice import advice_at_end
from infrastructure.run.cost import cost_of
from infrastructure.run.directory import RunDirectory, RunStatus
from infrastructure.run.finalize import read_summary
from infrastructure.run.record_types import Summary
from infrastructure.run.summary_text import closing_lines, cost_lines
from infrastructure.training.checkpoints.checkpoint_manager import take_best
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.hf_bridge import TemperCallback
from infrastructure.training.hf_bridge.trainer_facts import argument_names, known_names
from infrastructure.training.methods.check import Use, check_method, setting_names, treatment_of
from infrastructure.training.methods.trl_training import TrlTraining
from infrastructure.training.metrics.progress import MakeProgress
from infrastructure.training.observers.early_stopping import early_stopping
from infrastructure.training.observers.run_observers import ProgressObserver
from infrastructure.training.trainer_factory import show_gpus

METHOD_SETTINGS = "method_settings"
NO_MEASURES = ("eval_num_tokens",)  # of what TRL returns with an evaluation

Begun = Callable[[Path], None]


class MethodTraining:
    """One run that TRL trains.

    Args:
        run: the run, whose directory need not exist yet.
        accepted: names of settings or data that may differ although they change the result.
        begun: called with the run's directory when training starts.
        observers: further observers of this run.
        is_result_shown: whether another display shows the result.
        how_to_begin_anew: text on how to start a new run instead; appended to the line about
            resuming.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: DeploymentConfig,
        report: Report,
        accepted: Collection[str],
        begun: Begun,
        make_progress: MakeProgress,
        observers: Collection[Observer] = (),
        *,
        is_result_shown: bool = False,
        how_to_begin_anew: str = "",
    ) -> None:
        self.how_to_begin_anew = how_to_begin_anew
        self.observers, self.is_result_shown = observers, is_result_shown
        self.files, self.config, self.report = run, config, report
        self.accepted, self.make_progress = accepted, make_progress
        self.measured = _Measured(run, config, begun)

    def train(self) -> Summary:
        """Train to the end, or resume from the newest checkpoint.

        Returns:
            The content of summary.json.

        Raises:
            ValueError, TemperError: if the run cannot start with this configuration; nothing was
                trained.
            Exception: if the run failed; the finished steps are in a checkpoint.
        """
        config, run = self.config, self.files
        show_gpus(config)
        check_method(config)
        for note in config.notes():
            self.report(f"note: {note}")
        name = config.training.method
        self.report(
            phrase(
                "deployment.preparing_method",
                model=config.model.name,
                data=config.data.path,
                method=name,
            )
        )
        with self.report.waiting(phrase("deployment.loading_trl")):
            training = TrlTraining(config, run.path)
        for line in training.lines():
            self.report(line)
        callback, forecast = self._callback(training)
        resumed = callback.resume_from()
        if run.has_record():
            training.keep_precision(run.read_run().get("precision"))
        elif (by_product := training.choose_by_product()) is not None:
            self.report(by_product.line())
            callback.run.decided = by_product.decided()
        with traceback_kept_in(run.path / TRACEBACK_FILE):
            with self.report.waiting(phrase("deployment.loading_model")):
                trainer = training.make_trainer(is_new=resumed is None, say=self.report)
            training.data.quarantine.write(run.quarantine_file)
            if len(contents := training.data.contents()):  # else the file name has to do
                record_rows_of(run, config, contents)
            trainer.add_callback(callback)
            callback.look_before_loading(trainer)
            forecast.trainer = trainer
            self.report(f"Run {run.run_id}: {training.described(trainer)}")
            try:
                with without_progress_bars():
                    trainer.train(resume_from_checkpoint=resumed)
            except CopyNotConfirmedError:  # finished; the summary reports the backup
                pass
            except BaseException as error:
                callback.ended_by(error)
                raise
        return self._summary()

    def _callback(self, training: TrlTraining) -> tuple[TemperCallback, MethodForecast]:
        path = self.files.path.absolute()
        config = self.config.changed([])
        config.output_dir = str(path.parent)
        callback = TemperCallback(
            path.name,
            config,
            accept=translated(self.accepted),
            say=self.report,
            is_whole=True,
        )
        copies, began = callback.run.copies, time.monotonic()
        forecast = MethodForecast(self.files, self.config, self.report, copies, training)
        cost_before = read_summary(self.files).get("cost", {}).get("seconds", 0.0)

        def more_of_summary() -> Summary:
            seconds = cost_before + time.monotonic() - began
            return {
                **self.measured.summary(),
                **_of_data(self.measured.after, training),
                **cost_of(self.config.price_per_hour, seconds),
                "forecast": forecast.compared() if self.measured.is_finished else [],
            }

        def read_back(model: Any, folder: Path) -> None:
            questions, precision = training.questions(NUM_QUESTIONS), training.precision
            trained = Trained(
                model, training.tokenizer, questions, training.end_token_ids, precision.autocast
            )
            for note in check_saved(folder, trained):
                self.report(note)

        callback.run.check_saved = read_back
        callback.run.before_saving = self.measured.take_best
        callback.run.describe_model = training.describe_model
        callback.run.more_of_summary = more_of_summary
        callback.run.how_to_begin_anew = self.how_to_begin_anew
        callback.run.name_to_accept = setting_of
        short = copies.short
        callback.hooks = [
            self.measured,
            forecast,
            forecast.kept.peak,
            *early_stopping(config.training),
            ProgressObserver(lambda total, step: self.make_progress(total, step, short)),
            *self.observers,
        ]
        return callback, forecast

    def _summary(self) -> Summary:
        """Show the closing lines and return the summary."""
        summary = read_summary(self.files)
        if summary.get("status") == RunStatus.FINISHED:
            for line in closing_lines(self.files.path, summary, self.is_result_shown):
                self.report(line)
        else:
            for line in cost_lines(summary):
                self.report(line)
        return summary


class _Measured(Observer):
    """An observer that stores the first and the last evaluation, and includes them in each
    checkpoint.

    Args:
        begun: called with the run's directory when training starts.
    """

    def __init__(self, run: RunDirectory, config: DeploymentConfig, begun: Begun) -> None:
        self.run, self.config, self.begun = run, config, begun
        self.state: TrainingState | None = None
        self.before: dict[str, object] = {}
        self.after: dict[str, object] = {}
        self.by_step: dict[str, dict[str, object]] = {}
        self.measured_on: str | None = None
        self.resumed_step = 0
        self.final_step: int | None = None
        self.changed_after: int | None = None  # the step after which other rows were held out

    def train_start(self, state: TrainingState) -> None:
        self.state, self.resumed_step = state, state.step
        self.begun(self.run.path)

    def eval_end(self, state: TrainingState) -> None:
        numbers = {name: n for name, n in state.evaluation.items() if name not in NO_MEASURES}
        if self.measured_on is not None and state.measured_on not in (None, self.measured_on):
            self.before, self.changed_after = {}, self.resumed_step
        self.measured_on = state.measured_on or self.measured_on
        if state.step == 0:
            self.before = spell_numbers(numbers)
        else:
            self.after = self.by_step[str(state.step)] = spell_numbers(numbers)

    def take_best(self, model: torch.nn.Module) -> None:
        """If so configured, load the weights of the best checkpoint into `model`."""
        if self.state is None or not self.config.training.ends_with_best:
            return
        step = take_best(model, self.run.checkpoints, self.state.step)
        if step != self.state.step:
            self.final_step, self.after = step, self.by_step.get(str(step), {})

    @property
    def is_finished(self) -> bool:
        """True if the run has reached its end without an error."""
        state = self.state
        return state is not None and not state.is_cut_short and state.error is None

    def summary(self) -> Summary:
        """Return entries of summary.json, with `before` and `after` if they were measured."""
        measured: Summary = {"before": self.before, "after": self.after} if self.after else {}
        if self.changed_after is not None:
            measured["held_out_changed_after"] = self.changed_after
        if self.final_step is not None:
            measured["final_step"] = self.final_step
        return measured | self._advice()

    def _advice(self) -> Summary:
        """Return advice that follows from the final metrics; empty if the run was not finished."""
        state, training = self.state, self.config.training
        if state is None or not self.is_finished:
            return {}
        # With rewards, the loss does not show what is learned.
        method = method_named(training.method)
        has_loss = method is None or not method.has_rewards
        both = (self.before, self.after) if has_loss else ({}, {})
        advice = advice_at_end(
            self.run,
            training.best_metric,
            self.final_step or state.step,
            state.position.epoch,
            *both,
            best_is_greater=training.best_is_greater,
            is_cut_short=training.max_steps == state.step,
        )
        return {"advice": advice} if advice else {}

    def state_dict(self) -> dict[str, object]:
        return {
            "before": self.before,
            "after": self.after,
            "by_step": self.by_step,
            "measured_on": self.measured_on,
            "changed_after": self.changed_after,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.before, self.after = saved["before"], saved["after"]
        self.by_step = saved.get("by_step", {})
        self.measured_on, self.changed_after = saved["measured_on"], saved["changed_after"]


def _of_data(after: Mapping[str, object], training: TrlTraining) -> Summary:
    """Return entries of the summary: the system prompt, and the number of ranked held-out pairs."""
    facts: Summary = {}
    if f"{HELD_OUT}{RANKING}" in after:
        facts["num_pairs"] = len(training.data.held_out)
    if training.data.system_prompt is not None:
        facts["system_prompt"] = training.data.system_prompt
    return facts


def translated(accepted: Collection[str]) -> list[str]:
    """Convert accepted setting names to the names of the Trainer's arguments."""
    names: list[str] = []
    for name in accepted:
        if name == METHOD_SETTINGS:
            of_settings = setting_names()
            names += [each for each in argument_names() if each not in of_settings]
            continue
        treatment = treatment_of(f"training.{name}") if "." not in name else treatment_of(name)
        is_argument = treatment is not None and treatment.use is Use.ARGUMENT
        names.append(treatment.words if is_argument and treatment is not None else name)
    known = known_names()
    return [name for name in names if name in known]


def setting_of(name: str) -> str:
    """Return the name for `--accept` of a changed argument or part of a Trainer."""
    other = METHOD_SETTINGS if name in argument_names() else name
    return setting_names().get(name, other)
