"""The run directory of a Trainer's training, as `temper watch`, dashboard and report read it.

runs/<name>/run.json · metrics.jsonl · logs/ · checkpoints/ · tokenizer/ · resume/
           /final/ · report.html · summary.json
"""

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from infrastructure.backup.finished_run import Completion, complete, not_safe
from infrastructure.backup.format.retention import retention_of
from infrastructure.backup.repair.run_files_repair import REPORT_FILE, SEAL, read_seal, seal_of
from infrastructure.backup.repair.run_repair import Outcome
from infrastructure.backup.replication.status import DOWN, short_words
from infrastructure.backup.run_backup import RunBackup, place_options
from infrastructure.backup.state.run_files import read_run_files, restore_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.checksums import damaged_files, read_record, write_record, write_sums
from infrastructure.core.errors import (
    CheckpointError,
    CopyNotConfirmedError,
    DamagedFileError,
    StorageError,
)
from infrastructure.core.files import (
    file_sha256,
    make_directory,
    recover_directory,
    whole_directory,
)
from infrastructure.core.hardware import detect
from infrastructure.core.redact import redact, redact_mapping
from infrastructure.monitoring.drawing.metrics_file import spell_numbers
from infrastructure.monitoring.records.run_list import RUN_FILE, TRAINER_KEY
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.run.lock import only_trainer_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.hf_bridge.call_watchdog import LOOK_SECONDS
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from infrastructure.training.models.saving import write_lora_card
from infrastructure.training.resume.fingerprint import installed_versions

HERE = (Layer.CELL, Layer.FLAG, Layer.KEYWORD, Layer.FORM)  # layers that are about this training
SUMMARY_FILE = "summary.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
HERE_ONLY = "Checkpoints lie on this machine only; backup.place copies them elsewhere"
LOOK_AT_COPIES_SECONDS = 1.0
NOTHING_PUBLISHED = Completion()
# What a wait would not change: there is no place, another machine has gone on, or it never answers.
NO_MORE = ("off", "fenced", "doubtful", DOWN)
# Settings of the configuration that mean something here; all else is the Trainer's to decide.
TAKES_EFFECT = (
    *("backup.", "monitor.", "output_dir", "enable_monitoring", "enable_backups", "cache."),
    *("training.checkpoint_seconds", "training.keep_", "training.compress_checkpoints"),
    *("training.deadline", "training.metrics_sinks", "training.enabled_extensions"),
    *("training.recovery.max_failed_saves", "log_level"),
)


class TrainerRun:
    """The directory, versions and copies of one training.

    Args:
        name: what it is found by when it goes on, here and at `backup.place`.
        config: `TAKES_EFFECT` lists what of it counts.
        say: shows a line to a person.

    Raises:
        ValueError: the name cannot be a folder's, or `backup.place` names no place.
    """

    def __init__(self, name: str, config: DeploymentConfig, say: Callable[[str], None]) -> None:
        if not NAME.fullmatch(name) or redact(name) != name:
            raise ValueError(
                f"name={name!r}: the name of a training becomes a folder: letters, digits, dots,"
                " dashes and underscores, and no secret"
            )
        self.name, self.config, self.say = name, config, say
        self._seen: tuple[float, str] | None = None
        self._is_place_checked = False
        self.directory = Path(config.output_dir).expanduser() / name
        self.tokenizer = self.directory / "tokenizer"
        self.final = self.directory / "final"
        retention = retention_of(config.training)
        self.versions = CheckpointManager(
            self.directory / "checkpoints",
            retention,
            lambda: read_run_files(self.directory),
            compress=config.training.compress_checkpoints,
        )
        self.backup = RunBackup(
            self.directory / "checkpoints",
            place_options(config),
            run_id=name,
            retention=retention,
        )

    @property
    def has_place(self) -> bool:
        """Whether anything is copied."""
        return self.backup.options.place is not None

    def notes(self) -> list[str]:
        """A sentence for each setting that was given for this run and has no effect in it."""
        return [
            f"note: {key} has no effect here: the Trainer's own arguments decide"
            for key, source in self.config.sources().items()
            if source.layer in HERE and not key.startswith(TAKES_EFFECT)
        ]

    def enter(self, stack: ExitStack) -> None:
        """Until `stack` closes, nobody else trains this run. A training of this process that an
        exception has just ended is waited for: it is noticed in less than a second.

        Raises:
            ValueError: a living process trains it; says which.
        """
        make_directory(self.directory)
        deadline = time.monotonic() + 4 * LOOK_SECONDS
        while True:
            try:
                stack.enter_context(only_trainer_of(self.directory))
                return
            except ValueError:
                holder = read_trainer(self.directory)
                is_own = holder is not None and holder.pid == os.getpid()
                if not is_own or time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_SECONDS / 10)

    def newest(self) -> Path | None:
        """The newest healthy version that verifies, brought back from the place where this machine
        has none; None: nothing was saved yet.

        Raises:
            CheckpointError: there are versions, and all are damaged.
            StorageError: the place does not answer.
        """
        self.check_place()
        for repair in self.backup.repair(self.directory):
            self.say(f"note: {repair.text}")
            if repair.outcome is Outcome.LOST and repair.what.startswith("tokenizer/"):
                shutil.rmtree(self.tokenizer, ignore_errors=True)  # the Trainer's own is saved anew
        if self.versions.checkpoints():
            try:
                return self.versions.newest()
            except CheckpointError:
                if not self.has_place:
                    raise
        return self._from_place() if self.has_place else None

    def _from_place(self) -> Path | None:
        if self.backup.is_missing:
            return None
        try:
            checkpoint = self.backup.restore_run()
        except CheckpointError:
            if self.backup.list_backups():
                raise
            return None
        store = self.backup.store
        for problem in restore_run_files(store, store.read(checkpoint.stem), self.directory):
            self.say(f"note: {problem}")
        self.say(f"Run {self.name}: brought back from {self.backup.options.place}")
        return checkpoint

    def record(self, parts: TrainerParts, num_examples: int | None) -> None:
        """Write run.json before the first step; it stays as it is when the training goes on."""
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            read_record(self.directory / RUN_FILE)
            return
        args, model = parts.args, parts.model
        count = {"num_parameters": _count(model), "num_trainable": _count(model, trained=True)}
        write_record(
            self.directory / RUN_FILE,
            {
                "run_id": self.name,
                "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "command": redact(shlex.join(sys.argv)),
                TRAINER_KEY: {"arguments_class": type(args).__name__},
                "config": {**_arguments(args), **self._settings()},
                "settings": self.config.to_dict(),
                "versions": installed_versions(),
                "hardware": {**asdict(detect(self.directory)), "device": str(parts.device)},
                "precision": precision_name(args),
                "model": {"name": _model_name(model), **count},
                "data": {"num_examples": num_examples},
            },
        )

    def _settings(self) -> dict[str, Any]:
        """The settings of the configuration that count, each with the place where it was set."""
        return {
            key: {"value": _shown(self.config.value(key)), "source": source.place}
            for key, source in self.config.sources().items()
            if key.startswith(TAKES_EFFECT)
        }

    def check_place(self) -> None:
        """Whatever is wrong with the place is told before anything is trained, once.

        Raises:
            StorageError: it cannot be used; says what to do.
            CopyNotConfirmedError: the same of a finished run, whose copy is not confirmed so.
        """
        if self._is_place_checked:
            return
        try:
            missing = self.backup.check_place()
        except StorageError as error:
            if not self.is_told_finished():
                raise
            raise CopyNotConfirmedError(self.not_safe(Completion(problem=str(error)))) from error
        self._is_place_checked = True
        self.backup.remember_place(self.backup.place_id)
        if missing is not None:
            self.say(
                f"note: {missing}. allow_missing_place is set: training begins without copies, and"
                " they are made when it is there"
            )

    def save_model(self, model: Any) -> None:
        """Write `final/`, the trained model in the ordinary layout with its tokenizer; one that is
        there and whole stays.

        Raises:
            OSError: the disk refuses.
        """
        recover_directory(self.final)
        if not self._is_saved():
            with whole_directory(self.final) as part:
                if self.tokenizer.is_dir():
                    shutil.copytree(self.tokenizer, part, dirs_exist_ok=True)
                if hasattr(model, "save_pretrained"):
                    model.save_pretrained(part)
                    if (part / "adapter_config.json").is_file():
                        write_lora_card(part)
                else:
                    save_model(model, str(part / "model.safetensors"))
                write_sums(part)

    def complete(self, seconds: float, record: Callable[[str | None], None]) -> Completion:
        """Have the place confirm all of a finished run, within `seconds`; Ctrl-C ends the wait.

        Args:
            record: writes summary and report, once it is known where the model lies.
        """
        if not self.has_place:
            return Completion()
        try:
            return complete(self.backup, self.directory, seconds, record=record)
        except KeyboardInterrupt:
            self.say("Not waiting any longer; copying goes on by itself")
            return Completion(problem="the wait for it was ended")

    def copies_facts(self, end: Completion = NOTHING_PUBLISHED) -> dict[str, Any]:
        """For summary.json and the report."""
        told = {name: value for name, value in asdict(end).items() if value}
        return {"text": self.copies_line(), **told}

    def not_safe(self, end: Completion) -> str:
        """The sentence for a run whose copy is not confirmed."""
        return not_safe(self.directory, str(self.backup.options.place), end)

    def _is_saved(self) -> bool:
        """Whether `final/` is there and what was written."""
        if not self.final.is_dir():
            return False
        try:
            damaged = damaged_files(self.final)
        except DamagedFileError as error:
            damaged = [str(error)]
        if damaged:
            self.say(f"note: final/ was damaged ({', '.join(damaged)}): written anew")
        return not damaged

    def save_tokenizer(self, processing_class: Any) -> None:
        """Write the tokenizer that the training goes on with; all of it is on the disk then."""
        with whole_directory(self.tokenizer) as part:
            processing_class.save_pretrained(part)

    def has_report(self) -> bool:
        """Whether the report is there that was written at the end."""
        sealed = read_seal(self.directory).get(REPORT_FILE)
        report = self.directory / REPORT_FILE
        return sealed is not None and report.is_file() and file_sha256(report) == sealed

    def seal(self) -> None:
        """Write down what the files of the run hold, when nothing writes to them any more."""
        with contextlib.suppress(OSError, DamagedFileError):
            told = read_record(self.directory / SUMMARY_FILE)
            write_record(self.directory / SUMMARY_FILE, {**told, SEAL: seal_of(self.directory)})

    def summarise(self, values: dict[str, Any]) -> None:
        """Write summary.json."""
        paths = {
            "run": self.directory,
            "checkpoints": self.versions.store.root,
            "metrics": self.directory / "metrics.jsonl",
            "report": self.directory / "report.html",
            **({"model": self.final} if self.final.is_dir() else {}),
        }
        told = {"paths": {name: str(path.absolute()) for name, path in paths.items()}}
        write_record(self.directory / SUMMARY_FILE, dict(spell_numbers({**values, **told})))

    def read_summary(self) -> dict[str, Any]:
        """What summary.json says; nothing where it is missing or damaged."""
        try:
            return read_record(self.directory / SUMMARY_FILE)
        except (OSError, DamagedFileError):
            return {}

    def is_told_finished(self) -> bool:
        """Whether summary.json says so."""
        return self.read_summary().get("status") == "finished"

    def copies_line(self) -> str:
        """How the copies stand, as a sentence."""
        if not self.has_place:
            return HERE_ONLY
        return self.backup.status().possible_loss(time.time()).text

    def copies_short(self) -> str | None:
        """The last confirmed version and its age, for a line that is drawn at every step."""
        if not self.has_place:
            return None
        if self._seen is None or time.monotonic() - self._seen[0] >= LOOK_AT_COPIES_SECONDS:
            self._seen = (time.monotonic(), short_words(self.backup.status(), time.time()))
        return self._seen[1]

    def copies_age_seconds(self) -> float | None:
        """The age of the last confirmed version; None before there is one."""
        return self.backup.status().possible_loss(time.time()).seconds

    def wait_for_copies(self, seconds: float) -> None:
        """Wait until the newest version is confirmed, at most `seconds`; Ctrl-C ends the wait."""
        deadline, newest = time.monotonic() + seconds, self.backup.store.newest_healthy()
        self.backup.try_again()
        try:
            while (left := deadline - time.monotonic()) > 0:
                status = self.backup.finish(min(LOOK_AT_COPIES_SECONDS, left))
                if status.confirmed_name == newest or status.state in NO_MORE:
                    return
        except KeyboardInterrupt:
            self.say("Not waiting any longer; copying goes on by itself")


def precision_name(args: Any) -> str:
    """The number format of the arithmetic: bf16, fp16 or fp32."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"


def _count(model: torch.nn.Module, *, trained: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


def _model_name(model: torch.nn.Module) -> str:
    path = getattr(getattr(model, "config", None), "_name_or_path", None)
    return redact(str(path or type(model).__name__))


def _arguments(args: Any) -> dict[str, Any]:
    """The Trainer's arguments that are not at their default; secrets are masked."""
    given = {
        field.name: args.to_dict().get(field.name)
        for field in dataclasses.fields(args)
        if field.init and getattr(args, field.name, None) != field.default
    }
    plain = {k: _shown(v) for k, v in given.items() if v is not None and v != {} and v != []}
    source = f"{type(args).__name__} of the Trainer"
    return {
        f"trainer.{k}": {"value": v, "source": source} for k, v in redact_mapping(plain).items()
    }


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    plain = value is None or isinstance(value, bool | int | float | list | dict)
    return value if plain else str(value)
