"""A whole run: prepare, evaluate, train, evaluate again, save, report.

The command line and the notebooks call `TrainingDeployment(config).run()`.
"""

import contextlib
import logging
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.backup.run_backup import place_options
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig as DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.methods import SFT
from infrastructure.core.agent import agent_folder
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.console import Count, Report, ShowLine, details, show
from infrastructure.core.console_log import quiet_libraries
from infrastructure.core.errors import CheckpointError, DamagedFileError, InputError, StorageError
from infrastructure.core.files import make_directory, write_json
from infrastructure.core.full_disk import full_disk
from infrastructure.core.importing import searching_rarely
from infrastructure.core.kept_traceback import TRACEBACK_FILE, traceback_kept_in
from infrastructure.core.messages import phrase
from infrastructure.core.standard_output import lossy_output, lost_output_kept_in
from infrastructure.core.stop_signals import (
    Stopper,
    reason_of,
    signals_handled,
    stop_signals,
)
from infrastructure.data.defaults import make_ready
from infrastructure.data.encoding.row_schema import TEXT
from infrastructure.data.preparation.doubts import check_meant
from infrastructure.data.preparation.plan import template_notes
from infrastructure.deployment.forecast import RunForecast, bytes_of_version
from infrastructure.deployment.method_training import MethodTraining
from infrastructure.deployment.model_repair import repair_finished
from infrastructure.deployment.resuming import (
    as_begun,
    backend_of,
    commit_of_base,
    describe_differences,
    has_other_data,
)
from infrastructure.deployment.run_finalizer import (
    CompilingObserver,
    RunFinalizer,
    describe_data,
    describe_model,
    record_rows,
    record_run,
    save_tokenizer,
    unused_gpus,
)
from infrastructure.evaluation.held_out import (
    HeldOut,
    MeasuredBefore,
    measure,
    measure_answers,
)
from infrastructure.models.backend_choice import Backend
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.monitoring.records.run_owner import take_announced_stop
from infrastructure.monitoring.records.run_reader import CHECKS_FILE, read_rounds
from infrastructure.monitoring.records.run_view import from_here
from infrastructure.monitoring.watching.alert_sinks import check_alert_sinks
from infrastructure.run.checkpoint_paths import verify
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.configuration_judge import canonical_name
from infrastructure.run.directory import RunDirectory, default_name, is_called, plan_run
from infrastructure.run.finalize import complete_finished, record_running
from infrastructure.run.find import (
    Beginning,
    changed_under_way,
    has_other_settings,
    newest_of_this_purpose,
    unfinished_beside,
)
from infrastructure.run.history import HISTORY, brought_other_data, extend_history
from infrastructure.run.lock import only_trainer_of, refuse_trained_elsewhere, waited_for
from infrastructure.run.output_dir import check_spelling, no_empty_folder_left
from infrastructure.run.record_types import Summary
from infrastructure.run.repair import repair_records, repair_run
from infrastructure.run.replication import RunReplication
from infrastructure.run.restore import restore_run, run_at_place, runs_at_place
from infrastructure.run.summary_text import RESULT, closing_lines, steps_ahead
from infrastructure.run.timings import Stages
from infrastructure.run.trained_rows import trained_rows
from infrastructure.testing.preflight import preflight
from infrastructure.testing.results import CheckResult, lines_of, verdict
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.precision import choose_device
from infrastructure.training.core.product_choice import ProductChoice, threads_restored
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from infrastructure.training.loop.session import TrainingSession
from infrastructure.training.metrics.progress import MakeProgress, make_progress
from infrastructure.training.metrics.sinks import SINKS, sinks_of_run
from infrastructure.training.model_adapters.base_adapter import held_out_identity
from infrastructure.training.observers.monitoring_setup import monitoring_hooks
from infrastructure.training.observers.run_observers import ProgressObserver, run_observers
from infrastructure.training.setup.compute_choice import choose_by_product, choose_by_trial
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.trainer_factory import TrainerFactory

MOST_NAMED = 4  # settings named in one line


log = logging.getLogger(__name__)


class TrainingDeployment:
    """A run from its configuration to its report.

    Args:
        config: the whole configuration of the run.
        say: a function that shows a line to the user.
        accept: names of settings or data that may differ when a run resumes, although they change
            the result, such as `["learning_rate", "data"]`.
        begun: called once with the run's directory, after run.json was written.
        make_progress: creates the progress display. It is called with the total number of steps,
            the first step, and a function that returns a text to append to the display.
        shown_elsewhere: what another display already shows: names of metric sinks ("console"), or
            RESULT for the result of the run.
        observers: further observers of this run, such as that of a sweep.

    Raises:
        ValueError: if `accept` contains an unknown name.
    """

    def __init__(
        self,
        config: DeploymentConfig,
        say: ShowLine = show,
        accept: Collection[str] = (),
        begun: Callable[[Path], None] = do_nothing,
        make_progress: MakeProgress = make_progress,
        shown_elsewhere: Collection[str] = (),
        observers: Collection[Observer] = (),
    ) -> None:
        self.config = config
        self.observers = tuple(observers)
        self.begun, self.make_progress = begun, make_progress
        self.shown_elsewhere = frozenset(shown_elsewhere)
        self.report = Report(say, config.verbose or config.log_level == "DEBUG")
        self.accepted = frozenset(map(canonical_name, accept))
        self.checks: list[CheckResult] = []
        self.by_product: ProductChoice | None = None  # of a new run
        self.is_place_missing: bool | None = None  # None: not checked yet
        self._place_id: str | None = None
        self.stages = Stages()
        self._beginning: Beginning | None = None
        self._how_to_begin_anew = ""  # for a run that was not named explicitly
        self._how_to_train_again = ""  # the same for a finished one

    def run(self) -> Summary:
        """Resume the newest unfinished run with these settings, or start one, and train to the end.

        A finished run is not trained again; only its closing lines are shown. The setting `new_run`
        always starts a new run.

        Returns:
            The content of summary.json.

        Raises:
            ValueError, TemperError: if the run cannot start with this configuration; nothing was
                trained.
            Exception: if the run failed; the finished steps are in a checkpoint.
        """
        quiet_libraries()
        make_ready(self.config)
        check_spelling(Path(self.config.output_dir))
        agent = agent_folder()
        if agent is not None and agent.run is not None:  # its processes were restarted
            return self.go_on(RunDirectory(agent.run))
        with (
            lossy_output(),
            threads_restored(),
            searching_rarely(),
            no_empty_folder_left(Path(self.config.output_dir)),
        ):
            return self._run()

    def _run(self) -> Summary:
        self._beginning = None if self.config.new_run else Beginning(self.config)
        try:
            return self._begin_or_go_on()
        finally:
            self._others_may_begin()

    def _begin_or_go_on(self) -> Summary:
        run = None if self.config.new_run else self._run_of_this_purpose()
        if run is None:
            if not self.config.new_run and not self._name_changed():
                self._name_unfinished()
            training, model = self.config.training, self.config.model
            name = self.config.run_name or default_name(model.name, training.method)
            return self._begin(plan_run(Path(self.config.output_dir), name))
        self._others_may_begin()  # they will find this run
        if self.config.run_name and not is_called(run, self.config.run_name):
            name = self.config.run_name
            self.report(phrase("deployment.run_name_without_effect", run_id=run.run_id, name=name))
        self._how_to_train_again = phrase("deployment.new_run_trains_again")
        return self._go_on(run)

    def go_on(self, run: RunDirectory) -> Summary:
        """Train `run` to its end, from its newest checkpoint, or from the start if it has none."""
        make_ready(self.config)
        with lossy_output(), threads_restored(), searching_rarely():
            return self._go_on(run)

    def _go_on(self, run: RunDirectory) -> Summary:
        self.config = as_begun(run, self.config)
        options = place_options(self.config)
        if run.is_finished():
            repair_finished(run, options, self.report)
        if run.is_finished() and not has_other_settings(run, self.config):
            return self.complete(run)
        refuse_trained_elsewhere(run.path)
        if not self._has_version(run):
            self.report(phrase("deployment.run_starts_over", run_id=run.run_id))
            return self._begin(run)
        # Problems with the device or the destination are reported first.
        choose_device(self.config.device)
        self._check_place(run)
        self._how_to_begin_anew = phrase(
            "deployment.new_run_starts_another"
        )  # shown once it is certain that the run can resume
        return self.resume(run)

    def resume(self, run: RunDirectory, checkpoint: Path | None = None) -> Summary:
        """Resume `run` from `checkpoint`; by default, from its newest intact checkpoint.

        Raises:
            ValueError: if another process trains the run.
            CheckpointError: if the checkpoint is damaged, or something that determines the result
                has changed and was not accepted.
        """
        make_ready(self.config)
        if self.config.training.method != SFT:
            return self._train_by_method(run, checkpoint)
        with (
            lossy_output(),
            threads_restored(),
            searching_rarely(),
            only_trainer_of(run.path),
        ):
            self._check_place(run)
            if checkpoint is not None and _has_gone_on(run):
                checkpoint = None
            self._note_begun(run)
            repair_run(run, place_options(self.config), self.report)
            if checkpoint is None:
                checkpoint = self._newest(run)
            else:
                verify(checkpoint)  # before anything that takes time
            has_record = run.has_record()
            if has_record and (commit := commit_of_base(run, self.config)):
                self.config.model.revision = commit
            tokenizer = run.tokenizer if run.tokenizer.is_dir() else None
            precision = run.read_run().get("precision") if has_record else None
            trainer = self._prepare(tokenizer, backend_of(run), precision, has_begun=True)
            if not has_record:
                record_run(run, self.config, trainer)
                self.report(phrase("deployment.run_record_rewritten", file=run.run_file.name))
            elif trainer.adapter.tokenizer is not None and not run.tokenizer.is_dir():
                save_tokenizer(run, trainer)
            with with_ranks(trainer), errors_and_output_kept(run):
                return self._train(run, trainer, self._before(run, trainer), checkpoint)

    def _newest(self, run: RunDirectory) -> Path:
        """Return the newest intact checkpoint; if there is none on this machine, restore one from
        the backup.
        """
        try:
            return CheckpointManager(run.checkpoints).newest()
        except CheckpointError as error:
            options = place_options(self.config)
            if options.place is None:
                raise
            self.report(
                phrase("deployment.looking_for_intact_version", error=error, place=options.place)
            )
            _, checkpoint = restore_run(run.run_id, options, run.path.parent)
            return checkpoint

    def _has_version(self, run: RunDirectory) -> bool:
        """Return whether the run has a checkpoint. If this machine has none, restore the run's
        backup first.
        """
        if CheckpointManager(run.checkpoints).checkpoints():
            return True
        self._check_place(run)
        options = place_options(self.config)
        if options.place is None or self.is_place_missing:
            return False
        if run.run_id not in runs_at_place(options):
            return False
        self.report(
            phrase(
                "deployment.looking_at_destination", run_id=run.run_id, destination=options.place
            )
        )
        restore_run(run.run_id, options, run.path.parent)
        return True

    def _run_of_this_purpose(self) -> RunDirectory | None:
        output_dir, options = Path(self.config.output_dir), place_options(self.config)
        repair_records(output_dir, options, self.report)
        run = newest_of_this_purpose(self.config, self.accepted)
        if run is not None and run.is_finished() and has_other_data(run, self.config):
            self.report(phrase("deployment.data_changed_after_run", run_id=run.run_id))
            return None
        return run or self._run_from_place()

    def _name_changed(self) -> bool:
        """Report a run that was started with these settings and changed later. Return whether there
        is one.

        If there are several such runs, the newest is reported. The report does not prevent a new
        run from starting.
        """
        changed = changed_under_way(self.config, self.accepted)
        if changed is None:
            return False
        run, words = changed
        self.report(
            phrase(
                "deployment.matching_run_was_changed",
                run_id=run.run_id,
                changes="; ".join(words[:MOST_NAMED]),
                path=run.path,
            )
        )
        return True

    def _name_unfinished(self) -> None:
        """Report an unfinished run with similar settings, in case the user meant to resume it."""
        unfinished = unfinished_beside(self.config)
        if unfinished is None:
            return
        run, differing = unfinished
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        self.report(
            phrase(
                "deployment.similar_run_unfinished",
                run_id=run.run_id,
                settings=", ".join(differing[:MOST_NAMED]),
                more=more,
                path=run.path,
            )
        )

    def _run_from_place(self) -> RunDirectory | None:
        """Restore a run with these settings from the backup; return None if the backup has none."""
        options = place_options(self.config)
        if options.place is None:
            return None
        self._check_place(RunDirectory(Path(self.config.output_dir) / "no run yet"))
        if self.is_place_missing:
            return None  # this was already reported
        try:
            run_id = run_at_place(self.config, self.accepted)
        except StorageError as error:
            error.add_note(phrase("deployment.unfinished_run_may_be_there"))
            raise
        if run_id is None:
            return None
        self.report(
            phrase("deployment.restoring_matching_run", run_id=run_id, destination=options.place)
        )
        try:
            run, _ = restore_run(run_id, options, Path(self.config.output_dir), report=self.report)
        except CheckpointError as error:
            error.add_note(phrase("deployment.remaining_copies_stay"))
            raise
        return run

    def _check_place(self, run: RunDirectory) -> None:
        """Check that the backup destination can be used. Only the first call does this.

        Raises:
            StorageError: if the destination cannot be used; the message says what to do.
        """
        if self.is_place_missing is not None:
            return
        copies = RunReplication(run, self.config, self.report)
        copies.check_place()
        self.is_place_missing = copies.backup.is_missing
        self._place_id = copies.backup.place_id

    def complete(
        self, run: RunDirectory, is_result_shown: bool = False, *, was_finished: bool = True
    ) -> Summary:
        """Complete the backup of a finished run, and report its result. Nothing is trained.

        Args:
            is_result_shown: whether another display shows the result.
            was_finished: True if the run had finished before this command, False if it finished
                during the command.

        Returns:
            The content of summary.json, in which `backup` has the current state of the backups.
        """
        self.config.adopt_plugins()
        copies = RunReplication(run, self.config, self.report)
        with waited_for(run.path, self.config.backup.finish_seconds):
            copies.compare_anew()
            summary = complete_finished(run, copies, self.config.backup.finish_seconds)
        for line in closing_lines(run.path, summary, is_result_shown):
            self.report(line)
        code = "deployment.run_finished_before" if was_finished else "deployment.run_finished"
        self.report(phrase(code, run_id=run.run_id, model=run.final, hint=self._how_to_train_again))
        copies.report_incomplete()
        return summary

    def _begin(self, run: RunDirectory) -> Summary:
        """Train `run` from its first step.

        The run's directory may exist from an earlier attempt. Otherwise it is created after model
        and data were loaded and checked.
        """
        if not run.path.is_dir():
            check_meant(self.config.data)
        if self.config.training.method != SFT:
            return self._train_by_method(run)
        self._check_place(run)
        trainer = None if run.path.is_dir() else self._prepare()
        make_directory(run.path)
        with only_trainer_of(run.path):
            trainer = trainer or self._prepare()
            with with_ranks(trainer), errors_and_output_kept(run):
                with self._stage("fit", phrase("deployment.measuring_batch_size")):
                    by_trial = choose_by_trial(trainer)
                    for line in by_trial.lines() if by_trial else ():
                        self.report.detail(line)
                    for index, line in enumerate(trainer.batch_plan().lines()):
                        (self.report if index == 0 else self.report.detail)(line)
                choices = [each for each in (self.by_product, by_trial) if each is not None]
                record_run(run, self.config, trainer, choices)
                self._others_may_begin()
                self._note_begun(run)
                return self._train(run, trainer, self._measure(run, trainer))

    def _train_by_method(self, run: RunDirectory, checkpoint: Path | None = None) -> Summary:
        """Train `run` with a TRL trainer, from its newest checkpoint, or from the start if it has
        none.

        Raises:
            ValueError: if a certain `checkpoint` is given.
        """
        if checkpoint is not None:
            raise InputError(
                "deployment.method_resumes_newest_only",
                method=self.config.training.method,
                run_id=run.run_id,
            )

        def begun(path: Path) -> None:
            self._others_may_begin()
            self.begun(path)

        progress = self.make_progress
        with lossy_output():
            return MethodTraining(
                run,
                self.config,
                self.report,
                self.accepted,
                begun,
                progress,
                self.observers,
                is_result_shown=RESULT in self.shown_elsewhere,
                how_to_begin_anew=self._how_to_begin_anew,
            ).train()

    def _before(self, run: RunDirectory, trainer: EnhancedTrainer) -> HeldOut:
        """Return the evaluation from before the first step, for a run that resumes.

        If the held-out rows have changed, the initial model, which `trainer` still has, is
        evaluated on the new rows.
        """
        before, rows = measured_before(run), held_out_identity(trainer.initialize_data())
        if before.measured_on == rows or None in (before.measured_on, rows):
            return before
        self.report(phrase("deployment.held_out_rows_changed"))
        if trainer.adapter.on_disk:  # no process holds it, so nothing is compared
            return HeldOut({})
        return self._measured(run, trainer)

    def _measure(self, run: RunDirectory, trainer: EnhancedTrainer) -> HeldOut:
        """Evaluate the model before the first step, and store the result in the run.

        If the model's weights stay on disk, nothing is measured: all ranks do it together later.
        """
        if trainer.adapter.on_disk:
            return HeldOut({})
        try:
            return self._measured(run, trainer)
        except KeyboardInterrupt:
            shutil.rmtree(run.path)  # nothing was trained, so there is nothing to resume
            raise

    def _measured(self, run: RunDirectory, trainer: EnhancedTrainer) -> HeldOut:
        count = Count(phrase("evaluation.evaluating_model"), "answers")
        with self._stage("measure", count.words):
            before = measure(trainer, count)
        write_record(run.before_file, before.to_dict())
        return before

    @contextmanager
    def _stage(self, name: str, what: str | Callable[[], str]) -> Iterator[None]:
        """Time the block as the stage `name`. Show `what` if the block takes long."""
        with self.stages.stage(name), self.report.waiting(what):
            yield

    def _note_begun(self, run: RunDirectory) -> None:
        """Pass the run's directory to the launcher, if there is one, and to `begun`."""
        if (agent := agent_folder()) is not None:
            agent.note_run(run.path, _newest_version(run))
        self.begun(run.path)

    def _others_may_begin(self) -> None:
        if self._beginning is not None:
            self._beginning.end()

    def _prepare(
        self,
        saved_tokenizer: Path | None = None,
        began_with: Backend | None = None,
        precision: object = None,
        *,
        has_begun: bool = False,
    ) -> EnhancedTrainer:
        """Load the model and the data, and run the quick checks, before anything is trained.

        Args:
            precision: the dtype with which the run started; None for a new run.
        """
        check_alert_sinks(self.config)
        SINKS.check_usable(self.config.training.metrics_sinks)
        for note in self.config.notes():
            self.report(f"note: {note}")
        config = self.config
        trainer = TrainerFactory().for_run(
            config,
            began_with,
            saved_tokenizer=saved_tokenizer,
            answering=measure_answers if config.training.best_needs_answers else None,
        )
        if has_begun:
            trainer.keep_precision(precision)
        else:
            self.by_product = choose_by_product(trainer)
            if self.by_product is not None:
                self.report.detail(self.by_product.line())
        with self._stage("model", phrase("deployment.loading_model")):
            trainer.initialize_model()
        if trainer.backend_sentence:  # not before it is known that the model can be loaded so
            self.report(trainer.backend_sentence)
        with self._stage("data", phrase("deployment.preparing_data")):
            data = trainer.initialize_data()
        if type(trainer.strategy).check_length is not TrainingStrategy.check_length:
            trainer.length()
        for note in trainer.strategy.notes():
            self.report(f"note: {note}")
        self.report(describe_model(trainer))
        data_report = getattr(data, "report", None)
        data_lines = data_report.lines(self.report.is_verbose) if data_report else []
        if data_report and data_report.shape != TEXT:
            data_lines += template_notes(config.data, trainer.adapter.tokenizer)
        if trainer.placement.reason:
            show = self.report.detail if trainer.placement.sharding is None else self.report
            show(trainer.placement.reason)
        for line in [*unused_gpus(trainer), *data_lines, *trainer.adapter.notes()]:
            self.report(line)
        with self._stage("checks", phrase("deployment.checking_setup")):
            self.checks = checked_before(config, trainer, self.report, has_begun)
        return trainer

    def _train(
        self,
        run: RunDirectory,
        trainer: EnhancedTrainer,
        before: HeldOut,
        checkpoint: Path | None = None,
    ) -> Summary:
        copies = RunReplication(run, self.config, self.report)
        copies.backup.remember_place(self._place_id)
        measure_seconds = self.stages.seconds("measure")
        forecast = RunForecast(run, self.config, self.report, measure_seconds)
        finalizer = RunFinalizer(
            run,
            trainer,
            before,
            copies,
            forecast,
            self.stages,
            self.config.backup,
            self.report,
            self.config.price_per_hour,
            RESULT in self.shown_elsewhere,
        )
        with self._stage("fit", phrase("deployment.measuring_step")):
            session = self._make_ready(finalizer, checkpoint)
        state = session.state
        for note in shorter_than_given(self.config, state.total_steps):
            self.report(f"note: {note}")
        ahead = steps_ahead(state.step, state.total_steps)
        begins = phrase("deployment.training_starts", run=from_here(run.path), steps=ahead)
        self.report(f"{begins}{phrase('run.ctrl_c_saves_and_stops')}")
        record_running(run, state.total_steps, state.step)
        summary = self._train_to_end(finalizer, session)
        finalizer.show_end()
        return summary

    def _train_to_end(self, finalizer: RunFinalizer, session: TrainingSession) -> Summary:
        """Train to the end, finish or stop the run, and stop its helper processes."""
        run, trainer, state = finalizer.run, finalizer.trainer, session.state
        try:
            stopping = stop_on_signals(state, lambda: session.loop.may_break_off, run.path)
            with self.stages.stage("train"), stopping:
                trainer.train()
            return finalizer.stopped() if state.is_interrupted else finalizer.finish()
        except KeyboardInterrupt as error:
            return finalizer.stopped(error)
        except BaseException as error:
            full = full_disk(error, run.path, state.step)
            with contextlib.suppress(OSError):  # the same disk may fail; the error below reports it
                finalizer.failed(full or error)
            if full is not None:
                raise full from error
            raise
        finally:
            finalizer.clean_up()

    def _make_ready(self, finalizer: RunFinalizer, checkpoint: Path | None) -> TrainingSession:
        """Prepare the training, restore `checkpoint` if it is given, and make a forecast."""
        run, trainer, copies, forecast = (
            finalizer.run,
            finalizer.trainer,
            finalizer.copies,
            finalizer.forecast,
        )
        checkpoints = trainer.save_checkpoints_to(
            run.checkpoints, lambda: read_run_files(run.path), copies.seconds_to_confirm
        )
        checkpoints.apart = copies.backup.apart
        extensions = trainer.hooks.extensions
        sampled = {name: probe for one in extensions for name, probe in one.probes().items()}
        probes = {**sampled, **copies.probes()}
        watched = trainer.adapter, trainer.precision
        watching = monitoring_hooks(self.config, run.path, *watched, self.report, probes)
        recorded = [hook for one in extensions for hook in one.recorders(run.path, self.report)]
        trainer.add_hooks([*recorded, *watching, *self._observers(run, copies)])
        trainer.add_hooks(trainer.strategy.run_parts(trainer).observers(run.path))
        compiling = [h for h in trainer.hooks.hooks if isinstance(h, CompileBenchmark)]
        trainer.add_hooks(CompilingObserver(run, benchmark) for benchmark in compiling)
        trainer.add_hooks([forecast.peak])
        if checkpoint is None and trainer.adapter.on_disk:

            def keep(before: HeldOut) -> None:
                finalizer.before = before
                write_record(run.before_file, before.to_dict())

            trainer.add_hooks([MeasuredBefore(trainer, keep)])
        if checkpoint is not None:
            self._restore(run, trainer, checkpoint)
        session = trainer.prepare()
        keep_round(run.path, session.state.step, self.checks)
        size_bytes = bytes_of_version(session.state.model, session.create_optimizer)
        copies.check_free_space(size_bytes, session.loop.total_steps)
        forecast.measure(trainer)
        finalizer.started = time.monotonic()
        return session

    def _restore(self, run: RunDirectory, trainer: EnhancedTrainer, checkpoint: Path) -> None:
        agreed = trainer.restore(checkpoint, self.accepted)
        step = trainer.state.step
        self.report(
            phrase(
                "deployment.resuming_from_step" if step else "deployment.starting_again",
                run_id=run.run_id,
                **({"step": step} if step else {}),
                new_run_hint=self._how_to_begin_anew,
            )
        )
        for line in describe_differences(agreed, step):
            self.report(line)
        if step >= trainer.state.total_steps:
            self._note_without_effect(agreed)
            agreed = []
        saves = trainer.prepare().loop.checkpointer
        describe = partial(describe_data, self.config, trainer)
        before = saves.history
        saves.history = extend_history(run, {HISTORY: before}, agreed, step, describe)
        is_other = brought_other_data(saves.history[len(before) :])
        if is_other or trained_rows(run) is None:
            record_rows(run, trainer, self.config)

    def _note_without_effect(self, agreed: Sequence[Difference]) -> None:
        """Report that accepted changes have no effect and are not recorded, because no step is
        left.
        """
        names = [d.name for d in agreed if d.verdict is Verdict.CHANGES_THE_RESULT]
        if names:
            self.report(phrase("deployment.accepted_change_without_effect", names=", ".join(names)))

    def _observers(self, run: RunDirectory, copies: RunReplication) -> list[Hook]:
        training = self.config.training
        names = [name for name in training.metrics_sinks if name not in self.shown_elsewhere]
        sinks = sinks_of_run(names, run.path, training.loss)
        progress = ProgressObserver(
            lambda total, step: self.make_progress(total, step, copies.short)
        )
        return [*run_observers(run, copies, self.report, sinks, [progress]), *self.observers]


def _newest_version(run: RunDirectory) -> str:
    """Return the name of the newest checkpoint of `run`, or "" if it has none."""
    return next(iter(Store(run.checkpoints).versions()), "")


def _has_gone_on(run: RunDirectory) -> bool:
    """Return whether `run` has saved a checkpoint since the launcher first started this command.

    If it has, the launcher has restarted the processes. The run must then resume from this
    checkpoint, not from the one named on the command line.
    """
    agent = agent_folder()
    if agent is None or agent.run != run.path.absolute():
        return False
    return agent.newest_at_first != _newest_version(run)


def shorter_than_given(config: DeploymentConfig, total_steps: int) -> list[str]:
    """Return a note if the run ends before `training.max_steps`, or if its warmup is shortened.

    The warmup takes at most half of all steps.
    """
    most, notes = config.training.max_steps, config.short_warmup(total_steps)
    is_typed = config.source("training.max_steps").layer in (Layer.FLAG, Layer.KEYWORD)
    if most is not None and total_steps < most and is_typed:
        notes.append(
            phrase("deployment.max_steps_without_effect", max_steps=most, total_steps=total_steps)
        )
    return notes


@contextmanager
def with_ranks(trainer: EnhancedTrainer) -> Iterator[None]:
    """Start the other processes of a distributed run, and end them when the block ends."""
    try:
        trainer.placement.ranks.launch()
        yield
    finally:
        trainer.placement.ranks.close()


@contextmanager
def errors_and_output_kept(run: RunDirectory) -> Iterator[None]:
    """Return a context that writes an error's traceback, and output for a closed terminal, to files
    of the run.
    """
    with (
        lost_output_kept_in(run.path / OUTPUT_FILE),
        traceback_kept_in(run.path / TRACEBACK_FILE),
    ):
        yield


def measured_before(run: RunDirectory) -> HeldOut:
    """Return the evaluation from before the first step; empty if its file cannot be read."""
    try:
        return HeldOut.from_dict(read_record(run.before_file))
    except (OSError, DamagedFileError, TypeError, KeyError, AttributeError) as error:
        log.warning(phrase("deployment.baseline_unreadable", file=run.before_file, error=error))
        return HeldOut({})


# The handling of Ctrl-C, SIGTERM and SIGHUP in Temper's training loop, based on `Stopper`.
#
# The handlers are installed only while a command runs. The previous ones are restored afterwards.
# `Stopper` is in `core.stop_signals`.


def _always() -> bool:
    return True


@contextmanager
def stop_on_signals(
    state: TrainingState,
    may_break_off: Callable[[], bool] = _always,
    run_path: Path | None = None,
) -> Iterator[None]:
    """Call `state.interrupt` at the first signal while the body runs.

    If the run does not stop in time, or at a second Ctrl-C, StopSignal is raised as soon as
    `may_break_off` returns True. This does nothing outside the main thread.
    """

    def request(number: int) -> None:
        is_command = number == signal.SIGTERM and run_path is not None
        if is_command and take_announced_stop(run_path or Path()):
            state.interrupt(phrase("core.stopped_by_command"), StopReason.COMMAND, number)
        else:
            state.interrupt(reason_of(number), StopReason.SIGNAL, number)

    stopper = Stopper(request, may_break_off)
    with signals_handled(stop_signals(), stopper.handle):
        try:
            yield
        finally:
            stopper.close()


MAX_ROUNDS = 100


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
    if trainer.placement.sharding is not None:
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
