"""TemperCallback adds Temper's checkpoints and backup to transformers, TRL or Unsloth training.

    callback = TemperCallback("my-training")
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())

The same three lines start the run, resume it after any interruption, and do nothing once it is
finished.
"""

import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from infrastructure.backup.state.optimizer_state import Tensors, merge_optimizer
from infrastructure.backup.state.random_state import PYTHON_STATE_VERSION
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.console import show
from infrastructure.core.errors import InputError, RunStoppedError
from infrastructure.core.exact_json import from_json
from infrastructure.core.exit_codes import ExitCode, exit_code_of_signal
from infrastructure.core.files import whole_directory
from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.core.redact import redact
from infrastructure.core.standard_output import lossy_output, lost_output_kept_in
from infrastructure.core.stop_signals import Stopper, StopSignal, reason_of
from infrastructure.monitoring.logging_config import OUTPUT_FILE
from infrastructure.monitoring.records.run_owner import take_announced_stop
from infrastructure.run.compatibility import check_compatible
from infrastructure.training.checkpoints.checkpoint_manager import load_values
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.precision import check_torch_defaults
from infrastructure.training.core.state import StopReason
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.hf_bridge.best_model import BEST, write_best
from infrastructure.training.hf_bridge.bridged_training import (
    BridgedTraining,
    ResumeRequest,
    begin_training,
)
from infrastructure.training.hf_bridge.call_watchdog import (
    CallWatchdog,
    StopSignals,
    TrainCall,
)
from infrastructure.training.hf_bridge.finished_training import FinishedTraining, NothingToTrain
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from infrastructure.training.hf_bridge.trainer_facts import (
    BeforeLoading,
    TrainerJudge,
    before_loading,
    checked_names,
    facts_before_loading,
    lora_of,
    shows_logs,
    trainer_of,
)
from infrastructure.training.hf_bridge.trainer_run import TrainerRun
from infrastructure.training.hf_bridge.trainer_state import (
    TRAINER_STATE,
    TrainerParts,
    read_version,
    trainer_state_of,
)

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

FOLDER = "resume"  # in the run directory: the newest version in a Trainer's format


class TemperCallback:
    """A Trainer callback with Temper's checkpoints, backup, metrics, monitor, alerts and report.

    Temper's checkpoints replace the folders that the Trainer would write. They follow its
    `save_strategy` and are also written by time (`training.checkpoint_seconds`). If the Trainer
    needs its own folders (`load_best_model_at_end`, `push_to_hub`,
    `restore_callback_states_from_checkpoint`), it also writes them. Ctrl-C, SIGTERM and SIGHUP save
    and stop after the current step; `Trainer.train` then raises an exception (see
    `exception_of_stop`). A resumed run reaches the same weights as an uninterrupted one, provided
    that the dataset draws no random numbers when a row is read. Only single-process training is
    supported.

    Args:
        name: the run's name, which identifies it in `output_dir` and at `backup.place` when it
            resumes.
        config: locations and intervals. None: read from the configuration file and the environment.
            This does not affect the model, the data or the computation.
        accept: names of settings and inputs that may differ when the run resumes although they
            change the result, such as `["max_steps", "data"]`.
        hooks: observers and extensions in addition to `training.enabled_extensions`.
        say: shows a line to the user.
        is_whole: Temper created the Trainer from `config`. The whole configuration is recorded, and
            `Trainer.train` returns after a stop instead of raising an exception.

    Raises:
        ValueError: a name cannot be used, or the configuration is invalid. The message says what to
            do.
    """

    def __init__(
        self,
        name: str,
        config: DeploymentConfig | None = None,
        *,
        accept: Collection[str] = (),
        hooks: Iterable[Hook] = (),
        say: Callable[[str], None] = show,
        is_whole: bool = False,
    ) -> None:
        config = load_config() if config is None else config
        self.run = TrainerRun(name, config, lambda line: say(redact(line)), is_whole)
        self.hooks = list(hooks)
        self.accepted = checked_names(accept, is_whole)
        self._resumed: Path | None = None
        self._before: BeforeLoading | None = None  # of the Trainer, with nothing loaded
        self._training: BridgedTraining | FinishedTraining | None = None
        self._call: TrainCall | None = None  # kept after an error, for the next try
        self._first: Path | None = None  # the version that the last try began with
        self._error_before: BaseException | None = None
        self._ending = threading.Lock()
        self._guards = ExitStack()  # watches a call
        self._signals = ExitStack()  # the handlers; they stay until the last version is committed
        self._output = ExitStack()  # lossy while a training runs

    def resume_from(self) -> str | None:
        """Return the argument for `trainer.train(resume_from_checkpoint=...)`.

        The argument is a folder with the newest undamaged checkpoint, from this machine or from
        `backup.place`. None: there is no checkpoint, so the run starts from the beginning.

        Raises:
            ValueError: another process is training this run, or a changed default of torch prevents
                training.
            CheckpointError: all checkpoints are damaged, or the Trainer with this callback has a
                LoRA of another shape.
            StorageError: the backup destination does not respond, or this machine's disk returns an
                error.
        """
        check_torch_defaults()
        with ExitStack() as stack:
            self.run.enter(stack)
            self._resumed = self.run.newest()
            folder = self.run.directory / FOLDER
            if self._resumed is None:
                shutil.rmtree(folder, ignore_errors=True)
                if not self.run.is_whole:  # otherwise the run has a new name
                    self.run.report(self.run.none_found())
                return None
            version = read_version(self._resumed)
            if (trainer := trainer_of(self)) is not None:
                self.look_before_loading(trainer)
            write_checkpoint_folder(version, folder, self.run.files.tokenizer)
            return str(folder)

    def look_before_loading(self, trainer: Any) -> None:
        """Check the shape of the Trainer's LoRA, and record settings that loading the checkpoint
        overwrites.

        `resume_from` calls this if the callback was already added to the Trainer.

        Raises:
            CheckpointError: the LoRA has another shape.
        """
        if self._resumed is None:
            return
        self._before = before_loading(trainer)
        was = load_values(self._resumed).values["facts"]
        judge = TrainerJudge(self.run.is_whole, self.run.name_to_accept)
        check_compatible(lora_of(was), facts_before_loading(trainer, was), judge, self.accepted)

    def on_train_begin(
        self, args: "TrainingArguments", state: "TrainerState", control: object, **parts: Any
    ) -> None:
        """Begin or resume the run. The Trainer has already loaded the checkpoint, if any."""
        self._break_off(RuntimeError(phrase("trainer.begun_again")))
        call = TrainCall()
        its_trainer = call.trainer if hasattr(call.trainer, "callback_handler") else None
        if self._is_replaced(its_trainer):
            return
        self._correct_logs_first(its_trainer)
        is_another_try = self._call is not None and self._call.is_tried_again()
        if is_another_try:
            self._resumed = self._begun_with()
        trainer = TrainerParts(
            args, state, parts["model"], parts["optimizer"], parts["lr_scheduler"]
        )
        resumed = ResumeRequest(self._resumed, self.accepted, is_another_try, self._before)
        loader, processing_class = parts.get("train_dataloader"), parts.get("processing_class")
        with ExitStack() as output:
            output.enter_context(lossy_output())
            output.enter_context(lost_output_kept_in(self.run.directory / OUTPUT_FILE))
            training = begin_training(
                self.run, trainer, its_trainer, loader, processing_class, self.hooks, resumed
            )
            self._output = output.pop_all()
        self._training, self._resumed, self._before = training, None, None
        self._error_before = _last_error()
        self._call = call
        self._guard(call, training)
        if isinstance(training, BridgedTraining):
            training.begin()

    def _is_replaced(self, trainer: Any) -> bool:
        """Return whether a callback of the same run was added to the Trainer later.

        That happens if a notebook cell that creates and adds a callback runs again. If this
        callback itself was added again, its duplicates are removed.
        """
        if trainer is None:
            return False
        callbacks = trainer.callback_handler.callbacks
        after = callbacks.index(self) + 1
        later = [one for one in callbacks[after:] if self._is_of_this_run(one)]
        if later and later[-1] is not self:
            return True
        callbacks[after:] = [one for one in callbacks[after:] if one not in later]
        return False

    def _correct_logs_first(self, trainer: Any) -> None:
        """Move callbacks that show or write logs behind this one, which corrects the last log.

        The Trainer is iterating over the list now; the callbacks behind keep their positions.
        """
        if trainer is None:
            return
        callbacks = trainer.callback_handler.callbacks
        index = callbacks.index(self)
        shown = [one for one in callbacks[:index] if shows_logs(one)]
        others = [one for one in callbacks[:index] if one not in shown]
        callbacks[: index + 1] = [*others, self, *shown]

    def _is_of_this_run(self, callback: object) -> bool:
        if not isinstance(callback, TemperCallback):
            return False
        return callback.run.directory == self.run.directory

    def _guard(self, call: TrainCall, training: BridgedTraining | FinishedTraining) -> None:
        """Watch for the end of `Trainer.train`, and handle signals during the call."""
        watchdog = CallWatchdog(call, self._is_gone)
        watchdog.start()
        self._guards.callback(watchdog.end)
        if isinstance(training, FinishedTraining):
            self._guards.callback(NothingToTrain(call.trainer, training.metrics()).end)
        else:
            signals = StopSignals(call, self._stopper(training), self._breaking_off)
            signals.install()
            self._signals.callback(signals.remove)

    def _begun_with(self) -> Path | None:
        """Return the checkpoint with which the previous attempt of the same `Trainer.train` call
        began.

        The current attempt begins at the step of that checkpoint, but with weights that the
        previous attempt has trained further.
        """
        if self._first is not None and not self._first.is_file():
            raise InputError("trainer.start_checkpoint_rotated")
        return self._first

    def _stopper(self, training: BridgedTraining) -> Stopper:
        def request(number: int) -> None:
            if number == signal.SIGTERM and take_announced_stop(self.run.directory):
                training.state.interrupt(
                    phrase("core.stopped_by_command"), StopReason.COMMAND, number
                )
            else:
                training.state.interrupt(reason_of(number), StopReason.SIGNAL, number)
            # In a thread: the code that the signal interrupted may be writing to the same stream.
            line = phrase("trainer.stopping_after_step")
            threading.Thread(target=self.run.report, args=(line,), daemon=True).start()

        return Stopper(request, lambda: training.may_break_off)

    def _breaking_off(self, stop: StopSignal) -> BaseException:
        """Return the exception with which a stop signal interrupts a long operation."""
        return stop if self.run.is_whole else exception_of_stop(stop.name, str(stop))

    def _is_gone(self) -> None:
        """Record that an exception has ended `Trainer.train`. Called in the watchdog's thread."""
        error = _last_error()
        is_new = error is not None and error is not self._error_before
        unknown = RuntimeError(phrase("trainer.ended_by_exception"))
        self._break_off(error if is_new and error is not None else unknown)

    def ended_by(self, error: BaseException) -> None:
        """Record that `error` has ended the training, for callers of `Trainer.train` that catch it.

        Committed checkpoints are safe. Nothing happens if the end is already recorded.
        """
        self._break_off(error)

    def _break_off(self, error: BaseException) -> None:
        with self._ending:
            training, self._training = self._training, None
            self._guards.close()
            if training is not None:
                self._first = training.first
                training.break_off(error)
            self._signals.close()
            self._output.close()

    def on_epoch_begin(
        self, args: object, state: object, control: "TrainerControl", **parts: object
    ) -> None:
        """Begin an epoch (see `TrainerEvents.epoch_begins`). If the run is already
        finished, stop.
        """
        if (events := self._events()) is not None:
            events.epoch_begins()
        elif self._training is not None:
            control.should_training_stop = True

    def on_step_begin(self, args: object, state: object, control: object, **parts: object) -> None:
        """Begin a step, and write a checkpoint if one is due; see `TrainerEvents.step_begins`."""
        if (events := self._events()) is not None:
            events.step_begins()

    def on_substep_end(self, args: object, state: object, control: object, **parts: object) -> None:
        """Handle a finished micro-batch; see `TrainerEvents.micro_batch_done`."""
        if (events := self._events()) is not None:
            events.micro_batch_done()

    def on_pre_optimizer_step(
        self, args: object, state: object, control: object, **parts: object
    ) -> None:
        """Handle the final gradients of a step; see `TrainerEvents.gradients_are_final`."""
        if (events := self._events()) is not None:
            events.gradients_are_final()

    def on_step_end(
        self, args: object, state: object, control: "TrainerControl", **parts: object
    ) -> None:
        """Count a finished step, and decide whether to save; see `TrainerEvents.step_ends`."""
        if (events := self._events()) is not None:
            events.step_ends(control)

    def on_log(
        self,
        args: object,
        state: object,
        control: "TrainerControl",
        logs: MutableMapping[str, float] | None = None,
        **parts: object,
    ) -> None:
        """Handle a log of the Trainer; see `TrainerEvents.logged`."""
        if (events := self._events()) is not None:
            events.logged({} if logs is None else logs, control)

    def on_evaluate(
        self,
        args: object,
        state: object,
        control: "TrainerControl",
        metrics: Mapping[str, float] | None = None,
        **parts: object,
    ) -> None:
        """Handle an evaluation of the Trainer; see `TrainerEvents.evaluated`."""
        if (events := self._events()) is not None:
            loader = parts.get("eval_dataloader")
            events.evaluated(metrics or {}, control, getattr(loader, "dataset", None))

    def on_save(self, args: object, state: object, control: object, **parts: object) -> None:
        """Request a Temper checkpoint when the Trainer saves its own."""
        if (events := self._events()) is not None:
            events.own_checkpoint_saved()

    def on_epoch_end(
        self, args: object, state: object, control: "TrainerControl", **parts: object
    ) -> None:
        """Handle the end of an epoch; see `TrainerEvents.epoch_ends`."""
        if (events := self._events()) is not None:
            events.epoch_ends(control)

    def on_train_end(self, args: object, state: object, control: object, **parts: object) -> None:
        """End the run, unless it has already ended; see `BridgedTraining.end`.

        Raises:
            KeyboardInterrupt, SystemExit, RunStoppedError: the training was stopped and saved. The
                exception keeps the script from using a partly trained model; see
                `exception_of_stop`.
        """
        with self._ending:
            training, self._training = self._training, None
            self._guards.close()
            call, self._call = self._call, None
        is_stopped = False
        if isinstance(training, BridgedTraining):
            is_stopped = training.end(on_saved=self._signals.close)
        elif training is not None:
            training.end()
        self._output.close()
        if is_stopped and isinstance(training, BridgedTraining) and not self.run.is_whole:
            if call is not None:
                leave_training(call.trainer)
            about = {"step": training.state.step, "how": self.run.how_to_resume()}
            text = phrase("trainer.stopped", run=self.run.name, **about)
            raise exception_of_stop(training.state.stop_signal, text)

    def _events(self) -> TrainerEvents | None:
        """Return the handler of the Trainer's events; None if the run is already finished."""
        training = self._training
        return training.events if isinstance(training, BridgedTraining) else None

    def on_init_end(self, args: object, state: object, control: object, **parts: object) -> None:
        """Do nothing, because training has not begun."""

    def on_optimizer_step(
        self, args: object, state: object, control: object, **parts: object
    ) -> None:
        """Do nothing, because `on_step_end` follows."""

    def on_predict(self, args: object, state: object, control: object, **parts: object) -> None:
        """Do nothing, because prediction is not part of training."""

    def on_prediction_step(
        self, args: object, state: object, control: object, **parts: object
    ) -> None:
        """Do nothing, because `on_evaluate` receives all metrics."""

    def on_push_begin(self, args: object, state: object, control: object, **parts: object) -> None:
        """Do nothing, because the Trainer pushes by itself."""


def _last_error() -> BaseException | None:
    """Return the last uncaught exception of an interactive session, or None."""
    return getattr(sys, "last_value", None)


# The exception that ends a call of `Trainer.train` after a stop.
#
# Without it, the script would continue after `trainer.train()` and save a partly trained model.


def exception_of_stop(signal_name: str | None, text: str) -> BaseException:
    """Return the exception that ends `Trainer.train` after a stop.

    It is KeyboardInterrupt after Ctrl-C. After another stop it is SystemExit with the exit code of
    the stop. In a notebook's kernel it is RunStoppedError, because a kernel does not exit.

    Args:
        signal_name: the signal that stopped the training. None: a deadline or a hook did.
        text: says how to resume.
    """
    if signal_name == "SIGINT":
        return KeyboardInterrupt(text)
    if in_notebook_kernel():
        return RunStoppedError(text)
    if signal_name is None:
        return SystemExit(ExitCode.CAN_RESUME)
    return SystemExit(exit_code_of_signal(signal_name))


def leave_training(trainer: Any) -> None:
    """Undo changes that a Trainer leaves behind after an exception, so that it can train again."""
    if hasattr(trainer, "is_in_train"):
        trainer.is_in_train = False
    handle = getattr(trainer, "neftune_hook_handle", None)
    if getattr(trainer, "neftune_noise_alpha", None) is not None and handle is not None:
        handle.remove()


# Conversion of a Temper checkpoint to a folder for `resume_from_checkpoint` of a Trainer.
#
# The Trainer reads the folder with `weights_only`. Temper never unpickles anything in it.

DEFAULT_ADAPTER = "default"  # its files are in the folder itself, others' in one of their name


def write_checkpoint_folder(snapshot: Snapshot, folder: Path, tokenizer: Path) -> Path:
    """Write a snapshot as a Trainer's checkpoint folder, completely or not at all.

    Args:
        tokenizer: folder with the run's tokenizer, which is copied if it exists.

    Raises:
        OSError: the disk returns an error.
    """
    values = snapshot.values
    with whole_directory(folder) as part:
        if tokenizer.is_dir():
            shutil.copytree(tokenizer, part, dirs_exist_ok=True)
        _write_model(snapshot.tensors["model"], values["model"], part)
        optimizer = merge_optimizer(
            snapshot.tensors.get("optimizer", {}), from_json(values["optimizer"])
        )
        torch.save(optimizer, part / "optimizer.pt")
        torch.save(from_json(values["scheduler"]), part / "scheduler.pt")
        if values["scaler"] is not None:
            torch.save(from_json(values["scaler"]), part / "scaler.pt")
        torch.save(random_states(snapshot.tensors["random"]), part / "rng_state.pth")
        state = trainer_state_of(snapshot)
        if best := snapshot.tensors.get(BEST):
            inside = Path(BEST) / f"checkpoint-{state['best_global_step']}"  # not an adapter's
            write_best(best, part / inside)
            state["best_model_checkpoint"] = str(folder / inside)
        (part / TRAINER_STATE).write_text(json.dumps(state))
    return folder


def _write_model(tensors: Tensors, files: dict[str, Any], folder: Path) -> None:
    if files["adapters"] is None:
        if files["config"] is not None:
            (folder / "config.json").write_text(files["config"])
        tied = {name: tensors[own].clone() for name, own in files["tied"].items()}
        _save({**tensors, **tied}, folder / "model.safetensors")
        return
    for adapter, described in files["adapters"].items():
        inside = folder if adapter == DEFAULT_ADAPTER else folder / adapter
        inside.mkdir(exist_ok=True)
        (inside / "adapter_config.json").write_text(json.dumps(described["config"]))
        named = {name: tensors[own] for name, own in described["names"].items()}
        _save(named, inside / "adapter_model.safetensors")


def _save(tensors: Tensors, path: Path) -> None:
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})


def random_states(states: Tensors) -> dict[str, object]:
    """Return the states of all generators in the format of the Trainer's `rng_state.pth`."""
    gauss = states["python_gauss"].tolist()
    words = tuple(states["python"].tolist())
    position, has_gauss = states["numpy_position"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    random: dict[str, object] = {
        "python": (PYTHON_STATE_VERSION, words, gauss[0] if gauss else None),
        "numpy": ("MT19937", keys, position, has_gauss, float(states["numpy_gauss"][0])),
        "cpu": states["torch"].to(torch.uint8),
    }
    if torch.cuda.is_available() and (own := f"cuda_{torch.cuda.current_device()}") in states:
        random["cuda"] = states[own]
    return random
