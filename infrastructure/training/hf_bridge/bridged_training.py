"""One call of `Trainer.train` as a run of Temper, from its beginning to its end."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.backup.state.optimizer_state import split_optimizer
from infrastructure.config.fingerprint import result_settings
from infrastructure.config.merging.declared_settings import declare_settings
from infrastructure.core.errors import (
    CheckpointError,
    CopyNotConfirmedError,
    InputError,
    NothingLearnedError,
    TemperError,
)
from infrastructure.core.features import extensions_with
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.tokenization import ends_of_template
from infrastructure.models.saving_check import prepare_saving
from infrastructure.models.trainable_state import trainable_state
from infrastructure.monitoring.watching.alert_sinks import check_alert_sinks
from infrastructure.run.compatibility import Difference, check_compatible, in_words
from infrastructure.run.finalize import record_running, seal, summary_of, write_summary
from infrastructure.run.history import (
    History,
    change_words,
    extend_history,
    history_in,
    not_accepted,
)
from infrastructure.run.identity import what_cannot_be_compared
from infrastructure.run.record_types import Summary
from infrastructure.run.summary_text import best_lines
from infrastructure.training.checkpoints.save_schedule import REQUEST_FILE, SaveSchedule
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Extension, Hook, HookRunner
from infrastructure.training.extensions.extension_manager import (
    ExtensionFactory,
    create_extensions,
    own_extensions,
)
from infrastructure.training.hf_bridge.carried_state import (
    CarriedState,
    lost_state,
    restore_callbacks,
)
from infrastructure.training.hf_bridge.finished_training import FinishedTraining
from infrastructure.training.hf_bridge.reward_watch import reward_watch
from infrastructure.training.hf_bridge.trainer_events import HELD_OUT, SaveTiming, TrainerEvents
from infrastructure.training.hf_bridge.trainer_facts import (
    BeforeLoading,
    FactsReader,
    TrainerFacts,
    TrainerJudge,
)
from infrastructure.training.hf_bridge.trainer_metrics import numbers_of
from infrastructure.training.hf_bridge.trainer_run import TrainerRun, precision_name
from infrastructure.training.hf_bridge.trainer_state import (
    ModelFiles,
    TrainerParts,
    TrainerSnapshots,
    read_version,
    restore_counts,
    restore_model,
    restore_optimizer,
    trainer_state_of,
)
from infrastructure.training.metrics.progress import Progress
from infrastructure.training.metrics.sinks import sinks_of_run
from infrastructure.training.observers.monitoring_setup import monitoring_hooks
from infrastructure.training.observers.run_observers import ProgressObserver, run_observers
from infrastructure.training.observers.standstill import Standstill
from infrastructure.training.recovery.save_retry import SaveRetryPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, TrainingArguments

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumeRequest:
    """The state from which a call of `Trainer.train` resumes.

    Attributes:
        checkpoint: the checkpoint passed to the Trainer. None: the run starts from its first step.
            accepted: names of settings and inputs that may differ although they change the result.
        is_another_try: the same call of `Trainer.train` tries again, as with
            `auto_find_batch_size`.
        before: settings of the user's optimizer and schedule before the Trainer loaded a checkpoint
            into them. None: unknown.
    """

    checkpoint: Path | None
    accepted: frozenset[str]
    is_another_try: bool = False
    before: BeforeLoading | None = None


class BridgedTraining:
    """A Temper run around one call of `Trainer.train`.

    Args:
        parts: the objects that the Trainer passes to its callbacks.
        state: the training state that hooks see.
        saves: saves the run's checkpoints.
        events: converts the Trainer's events to Temper's.
        stack: holds the run's lock; closed at the end.
    """

    def __init__(
        self,
        run: TrainerRun,
        parts: TrainerParts,
        state: TrainingState,
        hooks: HookRunner,
        saves: SaveTiming,
        events: TrainerEvents,
        stack: ExitStack,
    ) -> None:
        self.run, self.parts, self.state, self.hooks = run, parts, state, hooks
        self.saves, self.events, self.stack = saves, events, stack

    @property
    def first(self) -> Path | None:
        """The checkpoint with which this call of `Trainer.train` began."""
        return self.saves.first

    def begin(self) -> None:
        """Fire the start events, before the first step."""
        self.hooks.fire(Event.TRAIN_START, self.state)
        self.hooks.fire(Event.PHASE_START, self.state)

    @property
    def may_break_off(self) -> bool:
        """True if raising an exception now would not lose a finished step.

        This requires that all finished steps are saved and no weights are being updated.
        """
        return not self.events.is_updating and self.parts.state.global_step <= self.saves.kept_step

    def end(self, on_saved: Callable[[], None]) -> bool:
        """End the run: wait for checkpoints and backup, and write model and report.

        Args:
            on_saved: called when everything is saved.

        Returns:
            True if the training was stopped before its last step.

        Raises:
            StorageError, OSError: this machine's disk returns an error. Committed checkpoints are
                safe.
            CopyNotConfirmedError: the run is finished here, but its backup is not confirmed.
            NothingLearnedError: steps no longer change any weight; the last of them is saved.
        """
        try:
            self._save_all()
            is_stopped = self.state.is_cut_short  # a signal from here on only ends the rest
            on_saved()
            self._end(is_stopped)
            return is_stopped
        except CopyNotConfirmedError:  # the training itself succeeded
            raise
        except BaseException as error:
            self.break_off(error)
            raise
        finally:
            on_saved()
            self._release()

    def _save_all(self) -> None:
        self.events.end()
        self.run.versions.close()

    def _end(self, is_stopped: bool) -> None:
        run, state = self.run, self.state
        if is_stopped:
            patience = run.config.backup.emergency_seconds
            run.copies.wait(self.saves.schedule.seconds_to_copy(state.stop_reason, patience))
        else:
            if self.parts.state.global_step < self.parts.state.max_steps:
                state.stop(phrase("trainer.ended_early"))  # keeps an earlier reason
            self.hooks.fire(Event.PHASE_END, state)
            run.save_model(self.parts.model)
        if state.stop_reason is StopReason.NOTHING_LEARNED:
            raise NothingLearnedError(str(state.stop_message))
        status = self._close(is_finished=not is_stopped)
        how = run.how_to_resume() if is_stopped else ""
        more = phrase("trainer.run_again_to_resume", how=how) if is_stopped else ""
        if not is_stopped and not run.is_whole and run.files.final.is_dir():
            more = phrase("trainer.model_and_report", directory=run.directory)
        about = {"status": status, "step": state.step, "more": more}
        run.report(phrase("trainer.run_ended", run=run.name, **about))
        if is_stopped:
            run.copies.close()
        else:
            run.complete()
        if run.copies.has_place and not _has_closing_lines(run, state):
            run.report(run.copies_line())

    def break_off(self, error: BaseException) -> None:
        """Record that an exception has ended the training. Committed checkpoints are safe."""
        self.state.error = error
        self.hooks.fire_to_all(Event.ERROR, self.state)
        try:
            self.run.versions.close()
            self._close(error=error)
        except (TemperError, OSError) as failure:  # the first error is the important one
            log.warning(phrase("trainer.outcome_not_recorded", run=self.run.name, failure=failure))
        finally:
            self._release()

    def _close(self, *, is_finished: bool = False, error: BaseException | None = None) -> str:
        """Write summary and report, fire TRAIN_END, and return the run's status."""
        state, files = self.state, self.run.files
        seconds = self.events.carried.seconds
        summary: Summary = {
            **summary_of(files, state, seconds, is_finished=is_finished, error=error),
            **(self._measured() if is_finished else {}),
            "backup": self.run.copies.facts(),
            **self.run.more_of_summary(),
        }
        if not self.events.has_logged:
            del summary["loss"]  # unknown
        if not state.num_tokens:
            del summary["tokens"]
        write_summary(files, summary)
        self.hooks.fire_to_all(Event.TRAIN_END, state)
        seal(files, summary)
        for line in [] if self.run.is_whole else best_lines(summary):
            self.run.report(line)
        return summary["status"]

    def _measured(self) -> Summary:
        """Return the held-out loss of the model in `final/`, for the run's summary.

        If the model has the weights of an earlier step than the last, the result also contains that
        step.
        """
        progress, last = self.parts.state, self.state.step
        takes_best = self.parts.args.load_best_model_at_end and progress.best_model_checkpoint
        step = (progress.best_global_step if takes_best else None) or last
        entries = [entry for entry in progress.log_history if entry["step"] == step]
        after: dict[str, object] = {
            name: number
            for entry in entries
            for name, number in numbers_of(entry).items()
            if name == HELD_OUT
        }
        measured: Summary = {"after": after or None}
        return measured if step == last else {**measured, "final_step": step}

    def _release(self) -> None:
        self.run.copies.close()
        self.stack.close()


def begin_training(
    run: TrainerRun,
    parts: TrainerParts,
    trainer: Any,
    loader: Sized | None,
    processing_class: "PreTrainedTokenizerBase | None",
    others: Iterable[Hook],
    resumed: ResumeRequest,
) -> BridgedTraining | FinishedTraining:
    """Begin a run, resume it, or detect that it is already finished.

    Args:
        trainer: the Trainer. None: unknown.
        loader: the Trainer's data loader.
        processing_class: the Trainer's tokenizer, which is saved with the run; or None.
        others: hooks of the user.

    Raises:
        ValueError: Temper does not support this training. The message says what to do. Nothing was
            trained.
        CheckpointError: something that determines the result has changed, or the checkpoint is
            damaged.
    """
    _refuse_several_processes(parts.args)
    with ExitStack() as stack:
        run.enter(stack)
        run.check_place()
        files = ModelFiles.of(parts.model)
        others = list(others)
        saved_whole = None if resumed.checkpoint is None else read_version(resumed.checkpoint)
        was = {} if saved_whole is None else saved_whole.values["facts"]
        facts = FactsReader(run, parts, trainer, was, resumed.before).read(
            getattr(loader, "dataset", None), processing_class, others
        )
        carried = CarriedState(trainer, loader, parts.device)
        state = TrainingState(parts.model, parts.optimizer, step=parts.state.global_step)
        state.total_steps = parts.state.max_steps
        saved, history = _restored(run, parts, state, facts, resumed, saved_whole)
        is_trained = saved_whole is not None and state.step >= state.total_steps
        if is_trained or saved.get("finished") == state.total_steps:
            run.report(phrase("trainer.run_already_finished", run=run.name))
            return FinishedTraining(run, parts, resumed.checkpoint, stack.pop_all())
        if saved_whole is not None:
            _restore_carried(run, trainer, carried, saved_whole)
            run.report(
                phrase(
                    "trainer.resuming",
                    run=run.name,
                    step=state.step,
                    new_run_hint=run.how_to_begin_anew,
                )
            )
        elif lost := lost_state(trainer):
            run.report(phrase("trainer.state_not_in_checkpoints", lost=lost))
        if processing_class is not None and not run.files.tokenizer.is_dir():
            run.save_tokenizer(processing_class)
        for note in prepare_saving(parts.model, ends_of_template(processing_class)):
            run.report(note)
        if not run.is_whole:  # otherwise the forecast checks it
            _check_free_space(run, parts, state.total_steps)
        run.record(parts, _num_examples(facts))
        hooks = hooks_of(run, parts, others)
        hooks.load_state_dict(saved.get("hooks", {}))
        record_running(run.files, state.total_steps, state.step)
        settings = result_settings(run.config) if run.is_whole else None
        snapshots = TrainerSnapshots(parts, files, facts, carried, state, hooks, settings, history)
        saves = _save_timing(run, snapshots, resumed.checkpoint)
        rewards = reward_watch(trainer, stack)
        events = TrainerEvents(parts, loader, state, hooks, saves, carried, rewards)
        for line in [*run.notes(), *([] if was else what_cannot_be_compared(facts["unseen"]))]:
            run.report(line)
        if (beginning := _beginning(run)) is not None:
            run.report(beginning)
        return BridgedTraining(run, parts, state, hooks, saves, events, stack.pop_all())


def _check_free_space(run: TrainerRun, parts: TrainerParts, total_steps: int) -> None:
    """Check the space for the checkpoints, on this machine and at the backup destination.

    The optimizer's state counts only in a run that resumes, because its size is unknown before the
    first step.
    """
    tensors = [trainable_state(parts.model), split_optimizer(parts.optimizer.state_dict())[0]]
    size_bytes = sum(tensor.nbytes for group in tensors for tensor in group.values())
    run.copies.check_free_space(size_bytes, total_steps)


def _restore_carried(
    run: TrainerRun, trainer: Any, carried: CarriedState, snapshot: Snapshot
) -> None:
    """Restore additional state of the Trainer and its callbacks from a checkpoint.

    Raises:
        CheckpointError: checkpoints do not contain some of that state, or it cannot be restored.
    """
    if snapshot.values["step"] and (lost := lost_state(trainer)):
        raise CheckpointError("trainer.cannot_resume_lost_state", run=run.name, lost=lost)
    carried.restore(snapshot.tensors, snapshot.values["carried"])
    restore_callbacks(trainer, trainer_state_of(snapshot)["stateful_callbacks"])
    if snapshot.values["carried"]["awaits_evaluation"]:
        run.report(phrase("trainer.evaluation_interrupted", step=snapshot.values["step"]))


def _beginning(run: TrainerRun) -> str | None:
    """Return a line for the start of the training that names the backup destination.

    For a Trainer that the user created, the line also names the run directory. Return None if
    Temper created the Trainer and there is no backup destination.
    """
    place, copies = run.shown_place, ""
    if place is not None:
        copies = phrase("trainer.copies_go_to", place=place)
    if not run.is_whole:
        shown = copies or run.copies_line()
        name, folder = run.name, run.directory
        return phrase("trainer.run_line_with_folder", run=name, folder=folder, copies=shown)
    return phrase("trainer.run_line", run=run.name, copies=copies) if copies else None


def _has_closing_lines(run: TrainerRun, state: TrainingState) -> bool:
    """Return whether the closing lines of the command report the state of the backup."""
    return run.is_whole and not state.is_cut_short


def _restored(
    run: TrainerRun,
    parts: TrainerParts,
    state: TrainingState,
    facts: TrainerFacts,
    resumed: ResumeRequest,
    snapshot: Snapshot | None,
) -> tuple[Mapping[str, Any], History]:
    """Restore the parts of a checkpoint that the Trainer has not loaded itself.

    The model's weights are restored too, because a Trainer loads only those that it knows.

    Returns:
        The values in the checkpoint (empty if the run starts from the beginning), and the changes
        made during the run.

    Raises:
        CheckpointError: a difference, now or earlier in the run, is not accepted.
    """
    if snapshot is None:
        _refuse_to_begin_again(run)
        return {}, []
    values = snapshot.values
    if values["step"] != state.step:
        raise InputError(
            "trainer.starts_at_wrong_step", run=run.name, saved_step=values["step"], step=state.step
        )
    judge = TrainerJudge(run.is_whole, run.name_to_accept)
    differences = check_compatible(values["facts"], facts, judge, resumed.accepted)
    if not run.is_whole:
        _refuse_changed(run, history_in(values), resumed.accepted)
    # after the last step no change has an effect
    taken = differences if state.step < state.total_steps else []
    for line in in_words(taken, state.step):
        run.report(line)
    named = [_named_as_accepted(d, run) for d in taken]
    history = extend_history(
        run.files, values, named, state.step, lambda: {"num_examples": _num_examples(facts)}
    )
    restore_model(parts.model, snapshot)
    if resumed.is_another_try:
        restore_optimizer(parts, snapshot)
    restore_counts(state, values)
    state.checkpoint = resumed.checkpoint
    return values, history


def _refuse_changed(run: TrainerRun, history: History, accepted: Collection[str]) -> None:
    """Raise if a setting was changed midway through the run and the change is not accepted now.

    After such a change, running the current script from the start would not give the same result.

    Raises:
        CheckpointError: there are such changes. The message lists them and says how to accept them.
    """
    if changes := not_accepted(history, accepted):
        names = [*dict.fromkeys([*accepted, *(change["name"] for _, change in changes)])]
        words = "; ".join(change_words(step, change) for step, change in changes)
        raise CheckpointError(
            "trainer.run_changed_midway", run=run.name, changes=words, names=sorted(names)
        )


def _named_as_accepted(difference: Difference, run: TrainerRun) -> Difference:
    """Replace a difference's name by the name that accepts it. The text keeps the original name."""
    name = run.name_to_accept(difference.name)
    return (
        difference
        if name == difference.name
        else replace(difference, name=name, text=str(difference))
    )


def _num_examples(facts: TrainerFacts) -> int | None:
    data = facts["parts"].get("data")
    count = data.get("num_examples") if isinstance(data, Mapping) else None
    return count if isinstance(count, int) else None


def _save_timing(run: TrainerRun, snapshots: TrainerSnapshots, first: Path | None) -> SaveTiming:
    training, state = run.config.training, snapshots.state
    request = run.versions.store.root / REQUEST_FILE
    schedule = SaveSchedule(training.checkpoint_seconds, training.deadline, request)
    schedule.reserve = run.copies.seconds_to_confirm
    schedule.start(state.step)
    failures = SaveRetryPolicy()

    def announce(checkpoint: Path) -> None:
        state.checkpoint = checkpoint
        snapshots.hooks.fire(Event.CHECKPOINT_SAVED, state)

    saves = SaveTiming(run.versions, schedule, failures, snapshots.take, announce, first)
    if first is None:
        saves.request(SaveKind.SCHEDULED)  # a version to roll back to from the start
    return saves


def _refuse_to_begin_again(run: TrainerRun) -> None:
    if run.versions.checkpoints():
        raise InputError("trainer.run_already_trained", run=run.name, directory=run.directory)


def _refuse_several_processes(args: "TrainingArguments") -> None:
    if args.world_size > 1:
        raise InputError("trainer.several_processes", world_size=args.world_size)
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        raise InputError("trainer.deepspeed_or_fsdp")


CONSOLE = "console"  # a Trainer prints its numbers itself


def _refuse_own_loop(name: str, _parts: object = None) -> NoReturn:
    raise InputError("trainer.extension_needs_own_loop", name=name)


def _refuse_added_weights(name: str, _parts: object = None) -> NoReturn:
    raise InputError("trainer.added_weights_not_saved", name=name)


def hooks_of(run: TrainerRun, parts: TrainerParts, others: Iterable[Hook]) -> HookRunner:
    """Return the hooks of a training run, in order.

    Args:
        others: hooks of the user, in addition to `training.enabled_extensions`.

    Raises:
        ValueError: an extension, a sink or an alert's webhook does not exist.
    """
    config, directory, copies = run.config, run.directory, run.copies
    check_alert_sinks(config)
    precision = Precision(precision_name(parts.args), parts.device.type)
    names: list[str] = config.training.enabled_extensions
    brought: dict[str, ExtensionFactory] = {
        **{n: partial(_refuse_added_weights, n) for n in extensions_with("adds_weights")},
        **{n: partial(_refuse_own_loop, n) for n in extensions_with("needs_own_loop")},
    }
    declare_settings(config.training, own_extensions(names, brought))
    sinks = [name for name in config.training.metrics_sinks if name != CONSOLE]
    extensions = create_extensions(names, parts, brought)
    for extension in extensions:
        if isinstance(extension, Extension) and extension.adds_weights:
            _refuse_added_weights(extension.name)
    bars = [ProgressObserver(lambda total, step: Progress(total, step, note=copies.short))]
    hooks: list[Hook] = [
        *extensions,
        *others,
        Standstill(),
        *monitoring_hooks(config, directory, None, precision, run.report, copies.probes()),
        *run_observers(
            run.files,
            copies,
            run.report,
            sinks_of_run(sinks, directory),
            bars if parts.args.disable_tqdm else [],  # otherwise the Trainer draws its own bar
        ),
    ]
    return HookRunner(hooks)
