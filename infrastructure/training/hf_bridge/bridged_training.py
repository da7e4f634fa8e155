"""One call of `Trainer.train` as a training of Temper, from its beginning to its end."""

import logging
import math
import time
from pathlib import Path
from typing import Any

from infrastructure.backup.finished_run import Completion
from infrastructure.core.errors import CopyNotConfirmedError, TemperError
from infrastructure.core.redact import redact
from infrastructure.monitoring.report.report import write_report
from infrastructure.run.compatibility import agree
from infrastructure.training.core.state import StopReason
from infrastructure.training.extensions.extension_hooks import Event
from infrastructure.training.hf_bridge.observers import hooks_of
from infrastructure.training.hf_bridge.trainer_events import HELD_OUT, TrainerEvents
from infrastructure.training.hf_bridge.trainer_facts import TrainerJudge, facts_of
from infrastructure.training.hf_bridge.trainer_state import (
    read_version,
    restore_model,
    restore_optimizer,
)

TRAINER_METRICS = "trainer_metrics"  # in summary.json: what `Trainer.train` gives back

log = logging.getLogger(__name__)


class BridgedTraining(TrainerEvents):
    """How a Trainer's training begins, goes on, ends and breaks off."""

    def begin(self, processing_class: Any) -> None:
        """The training begins, or goes on.

        Args:
            processing_class: the Trainer's tokenizer, kept with the run; or None.

        Raises:
            ValueError: it cannot be trained like this; says what to do. Nothing was trained.
            CheckpointError: what decides the result has changed, or the version is damaged.
        """
        _refuse_several_processes(self.parts.args)
        self.run.enter(self.stack)
        try:
            self.run.check_place()
            self._make_ready(processing_class)
        except BaseException:
            self.stack.close()
            raise
        if not self.is_finished_before:
            self._fire(Event.TRAIN_START)
            self._fire(Event.PHASE_START)

    def _make_ready(self, processing_class: Any) -> None:
        self._facts = facts_of(self.parts, getattr(self.loader, "dataset", None))
        saved = {} if self.resumed is None else self._go_on_from(self.resumed)
        if self.resumed is None:
            self._refuse_to_begin_again()
            self.saving.ask("scheduled")  # there is something to go back to from the start on
        self.is_finished_before = saved.get("finished") == self.state.total_steps
        if self.is_finished_before:
            self.run.say(f"Run {self.run.name} was finished before: nothing is trained")
            return
        if processing_class is not None and not self.run.tokenizer.is_dir():
            self.run.save_tokenizer(processing_class)
        self.run.record(self.parts, self._facts["data"]["num_examples"])
        self.hooks = hooks_of(self.run, self.parts, self.others)
        self.hooks.load_state_dict(saved.get("hooks", {}))
        self.run.summarise({"status": "running", "total_steps": self.state.total_steps})
        self.saving.schedule.start(self.state.step)
        for line in self.run.notes():
            self.run.say(line)
        self.run.say(f"Run {self.run.name} in {self.run.directory}: {self.run.copies_line()}")

    def _refuse_to_begin_again(self) -> None:
        if self.run.versions.checkpoints():
            raise ValueError(
                f"run {self.run.name} in {self.run.directory} has been trained before: go on with"
                " trainer.train(resume_from_checkpoint=callback.resume_from()), or give this"
                " training another name"
            )

    def _go_on_from(self, checkpoint: Path) -> dict[str, Any]:
        """Take over what a version holds besides what the Trainer has loaded from its folder; the
        weights too, since a Trainer loads only those of them that it knows."""
        snapshot = read_version(checkpoint)
        values, state = snapshot.values, self.state
        if values["step"] != state.step:
            raise ValueError(
                f"run {self.run.name} goes on from step {values['step']}, and this Trainer begins"
                f" at step {state.step}: pass it trainer.train(resume_from_checkpoint="
                "callback.resume_from())"
            )
        for difference in agree(values["facts"], self._facts, TrainerJudge(), self.accepted):
            self.run.say(f"note: {difference}: {difference.verdict.value}")
        restore_model(self.parts.model, snapshot)
        if self.is_another_try:
            restore_optimizer(self.parts, snapshot)
        state.num_examples, state.num_tokens = values["num_examples"], values["num_tokens"]
        state.recoveries = list(values["recoveries"])
        best = values["best_evaluation_loss"]
        state.best_evaluation_loss = math.inf if best is None else best
        state.checkpoint = checkpoint
        self._tokens_before = state.num_tokens
        self.run.say(f"Run {self.run.name}: going on from step {state.step}")
        return values

    def end(self) -> None:
        """The training has come to its end: wait for versions and copies, write model and report.

        Raises:
            StorageError, OSError: this machine's disk refuses; what was committed before is safe.
            CopyNotConfirmedError: finished here, but its copy is not confirmed.
        """
        try:
            self._end_again() if self.is_finished_before else self._end()
        except CopyNotConfirmedError:  # the training itself is in order, and told so
            raise
        except BaseException as error:
            self.break_off(error)
            raise

    def _end(self) -> None:
        self._close_step()
        self._is_ending = True
        if not self.needs_own_checkpoints:  # else other weights may have been loaded by now
            self._save()
        self.saving.finish(self.state)
        self.run.versions.close()
        if self.state.is_interrupted:
            if self.run.has_place:
                self.run.wait_for_copies(self._patience_seconds())
        else:
            self._fire(Event.PHASE_END)
            self.run.save_model(self.parts.model)
        status = "stopped" if self.state.is_interrupted else "finished"
        self._close(status, self.state.stop_message, lets_go=False)
        more = "; run this again to go on" if self.state.is_interrupted else ""
        self.run.say(f"Run {self.run.name}: {status} at step {self.state.step}{more}")
        self._complete() if status == "finished" else self._let_go()
        self.run.say(self.run.copies_line())

    def _end_again(self) -> None:
        """Whoever trained it may have been killed after its last version, and before its report or
        the last byte of its copy."""
        self.run.save_model(self.parts.model)
        if not self.run.is_told_finished():
            told = {"steps": self.state.step, "total_steps": self.state.total_steps}
            self.run.summarise({"status": "finished", **told})
        if not self.run.has_report():
            write_report(self.run.directory)
            self.run.seal()
        self.run.backup.forget_status()  # all is compared anew
        self._complete()
        self.run.say(self.run.copies_line())

    def _complete(self) -> None:
        """Have the place confirm all of it.

        Raises:
            CopyNotConfirmedError: it does not; everything of this machine is in order.
        """
        run = self.run
        try:
            end = run.complete(run.config.backup.finish_seconds, self._record_copies)
            self._record_copies(end.published, end)
        finally:
            self._let_go()
        if not end.is_complete:
            run.say(run.not_safe(end))
            raise CopyNotConfirmedError(run.not_safe(end))

    def _record_copies(self, published: str | None, end: Completion | None = None) -> None:
        if self.run.has_place:
            told = self.run.copies_facts(end or Completion(published))
            self.run.summarise({**self.run.read_summary(), "backup": told})
            write_report(self.run.directory)
            self.run.seal()

    def _let_go(self) -> None:
        self.run.backup.close()
        self.stack.close()

    def _patience_seconds(self) -> float:
        options, state = self.run.config.backup, self.state
        if not state.is_interrupted:
            return options.finish_seconds
        if state.stop_reason is StopReason.DEADLINE:
            return max(options.emergency_seconds, self.saving.schedule.seconds_left)
        return options.emergency_seconds

    def break_off(self, error: BaseException) -> None:
        """An exception has ended the training; what was committed before is safe."""
        self.state.error = error
        self.hooks.fire_to_all(Event.ERROR, self.state)
        is_stopped = isinstance(error, KeyboardInterrupt)
        told = redact(f"{type(error).__name__}: {error}")
        try:
            self.run.versions.close()
            self._close("stopped" if is_stopped else "failed", told, is_error=not is_stopped)
        except (TemperError, OSError) as failure:  # it is the first error that people look for
            log.warning("what became of run %s is not written: %r", self.run.name, failure)
        finally:
            self._let_go()

    def _close(
        self, status: str, reason: str | None, is_error: bool = False, lets_go: bool = True
    ) -> None:
        """Tell how it ended, and let everything go."""
        state = self.state
        after = {HELD_OUT: state.evaluation[HELD_OUT]} if HELD_OUT in state.evaluation else None
        self.run.summarise(
            {
                "status": status,
                "reason": None if is_error else reason,
                "error": reason if is_error else None,
                "steps": state.step,
                "total_steps": state.total_steps,
                "tokens": state.num_tokens,
                "seconds": time.monotonic() - self._started,
                "loss": state.loss,
                "recoveries": state.recoveries,
                "after": after,
                "backup": self.run.copies_facts(),
                TRAINER_METRICS: self.last_metrics,
            }
        )
        self.hooks.fire_to_all(Event.TRAIN_END, state)
        self.run.seal()
        if lets_go:
            self._let_go()

    def metrics_before(self) -> dict[str, float]:
        """What a finished training came to, as its Trainer has told then; empty: nobody knows."""
        told = self.run.read_summary().get(TRAINER_METRICS)
        return told if isinstance(told, dict) else {}


def _refuse_several_processes(args: Any) -> None:
    if args.world_size > 1:
        raise ValueError(
            f"TemperCallback saves the training of one process, and there are {args.world_size}:"
            " start one, without torchrun or accelerate launch"
        )
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        raise ValueError(
            "TemperCallback saves what lies in one process; with deepspeed or fsdp weights and"
            " optimizer lie elsewhere: train without them"
        )
