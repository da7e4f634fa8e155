"""One whole run: prepare, measure, train, measure again, save, report.

`TrainingDeployment(config).run()` is what the command line and the notebooks call.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infrastructure.backup.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig as DeploymentConfig
from infrastructure.core.files import write_json
from infrastructure.core.redact import redact
from infrastructure.deployment.run_directory import RunDirectory, plan_run
from infrastructure.deployment.run_lock import only_trainer_of
from infrastructure.deployment.run_record import (
    closing_lines,
    describe_model,
    record_run,
    summarise,
)
from infrastructure.deployment.signals import stop_on_signals
from infrastructure.evaluation.held_out import HeldOut, measure
from infrastructure.monitoring.report import write_report
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    step_of,
    verify,
)
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.sinks import make_sinks
from infrastructure.training.observers import (
    MetricsObserver,
    ProgressObserver,
    ReportObserver,
)
from infrastructure.training.state import TrainingState
from infrastructure.training.trainer_factory import TrainerFactory, use_sample_data

log = logging.getLogger(__name__)

# In a run's directory, what each machine makes anew, or what would hold itself.
NOT_IN_CHECKPOINTS = frozenset(
    {"checkpoints", "final", "report.html", "summary.json", "backup.json", "lock", "trained_by"}
)


class TrainingDeployment:
    """A run from configuration to report.

    Args:
        config: everything the run is told.
        say: shows a line to a person.
    """

    def __init__(self, config: DeploymentConfig, say: Callable[[str], None] = print) -> None:
        self.config = config
        self.say = lambda line: say(redact(line))

    def run(self) -> dict[str, Any]:
        """Start a new run and train to its end.

        Returns:
            What summary.json holds.

        Raises:
            ValueError, TemperError: the run cannot be started as it is; nothing was trained.
            Exception: the training failed; the finished steps are in a checkpoint.
        """
        use_sample_data(self.config)
        self.config.check_supported()
        run = plan_run(Path(self.config.output_dir), self.config.run_name or self.config.model.name)
        trainer = self._prepare()
        run.path.mkdir()
        with only_trainer_of(run.path):
            record_run(run, self.config, trainer)
            self.say(f"Run {run.run_id}: measuring the model before the training")
            try:
                before = measure(trainer)
            except KeyboardInterrupt:
                shutil.rmtree(run.path)  # nothing was trained, and there is nothing to go on with
                raise
            write_json(run.before_file, before.to_dict())
            return self._train(run, trainer, before)

    def resume(self, run: RunDirectory, checkpoint: Path | None = None) -> dict[str, Any]:
        """Go on with `run` from `checkpoint`, or from its newest that verifies.

        Raises:
            ValueError: another process trains it.
            CheckpointError: it is damaged, or the run's data or model is not what it was.
        """
        with only_trainer_of(run.path):
            if checkpoint is None:
                checkpoint = CheckpointManager(run.checkpoints).newest()
            else:
                verify(checkpoint)  # before anything that takes time
            trainer = self._prepare(run.tokenizer if run.tokenizer.is_dir() else None)
            self.say(f"Run {run.run_id}: going on from step {step_of(checkpoint)}")
            return self._train(run, trainer, measured_before(run), checkpoint)

    def _prepare(self, saved_tokenizer: Path | None = None) -> EnhancedTrainer:
        """Model and data, read and checked, so that whatever is wrong with them is told now."""
        for note in self.config.notes():
            self.say(f"note: {note}")
        config = self.config
        data_named = f" and data {config.data.path}" if config.data.path else ""
        self.say(f"Preparing model {config.model.name}{data_named}")
        trainer = TrainerFactory().for_run(config)
        trainer.adapter.saved_tokenizer = saved_tokenizer
        trainer.initialize_model()
        data = trainer.initialize_data()
        self.say(describe_model(trainer))
        report = getattr(data, "report", None)
        for line in [*(report.lines() if report else []), *trainer.adapter.notes()]:
            self.say(line)
        return trainer

    def _train(
        self,
        run: RunDirectory,
        trainer: EnhancedTrainer,
        before: HeldOut,
        checkpoint: Path | None = None,
    ) -> dict[str, Any]:
        trainer.save_checkpoints_to(
            run.checkpoints, lambda: read_run_files(run.path, NOT_IN_CHECKPOINTS)
        )
        trainer.add_hooks(self._observers(run))
        trainer.prepare()
        assert trainer.state is not None
        if checkpoint is not None:
            trainer.restore(checkpoint)
        self.say(f"Training for {trainer.state.total_steps} steps; Ctrl-C saves and stops")
        started = time.monotonic()
        write_json(run.summary_file, {"status": "running"})
        try:
            loop = trainer.prepare()
            with stop_on_signals(trainer.state, lambda: loop.may_break_off):
                state = trainer.train()
            return self._finish(run, trainer, state, before, time.monotonic() - started)
        except BaseException as error:
            summary = summarise(run, trainer, time.monotonic() - started, before, error=error)
            self._close(run, summary)
            if isinstance(error, KeyboardInterrupt):
                return self._stopped(run, summary)
            raise

    def _finish(
        self,
        run: RunDirectory,
        trainer: EnhancedTrainer,
        state: TrainingState,
        before: HeldOut,
        seconds: float,
    ) -> dict[str, Any]:
        if state.is_interrupted:
            summary = summarise(run, trainer, seconds, before)
            self._close(run, summary)
            return self._stopped(run, summary)
        trainer.adapter.save(run.final)
        self.say("Measuring the trained model")
        after = measure(trainer)
        summary = summarise(run, trainer, seconds, before, after)
        self._close(run, summary)
        for line in closing_lines(run, summary, after):
            self.say(line)
        return summary

    def _stopped(self, run: RunDirectory, summary: dict[str, Any]) -> dict[str, Any]:
        self.say(f"Stopped at step {summary['steps']}; go on with: temper train-resume {run.path}")
        return summary

    def _close(self, run: RunDirectory, summary: dict[str, Any]) -> None:
        write_json(run.summary_file, summary)
        try:
            write_report(run.path)
        except Exception as error:  # a page to look at never costs finished work
            log.warning("report.html was not written: %r", error)

    def _observers(self, run: RunDirectory) -> list[Hook]:
        training = self.config.training
        hooks: list[Hook] = [
            MetricsObserver(MetricsLogger(make_sinks(training.metrics_sinks, run.path))),
            ProgressObserver(),
            ReportObserver(run.path),
        ]
        return hooks


def measured_before(run: RunDirectory) -> HeldOut:
    """What was measured before the first step; nothing, if that file is gone: it is only shown."""
    try:
        return HeldOut.from_dict(json.loads(run.before_file.read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s cannot be read, so nothing is compared with it: %r", run.before_file, error)
        return HeldOut({})
