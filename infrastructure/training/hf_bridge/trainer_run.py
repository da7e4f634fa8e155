"""The directory, checkpoints and backup of a run that trains with a Trainer of transformers.

runs/<name>/run.json · metrics.jsonl · logs/ · checkpoints/ · tokenizer/ · resume/
           /final/ · report.html · summary.json
"""

import dataclasses
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_model

from infrastructure.backup.backends import open_place
from infrastructure.backup.finished_run import Completion
from infrastructure.backup.format.retention import retention_of
from infrastructure.backup.run_backup import place_options
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.checksums import damaged_files, write_record, write_sums
from infrastructure.core.errors import (
    CheckpointError,
    CopyNotConfirmedError,
    DamagedFileError,
    InputError,
    StorageError,
)
from infrastructure.core.files import make_directory, recover_directory, whole_directory
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.redact import redact, redact_mapping, redact_urls
from infrastructure.models.lora import count_parameters
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.router_logits import router_logits_off
from infrastructure.models.saving import write_generation_config, write_lora_card
from infrastructure.monitoring.records.run_list import TRAINER_KEY, how_to_run_again
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.run.directory import RunDirectory, RunStatus
from infrastructure.run.finalize import complete_finished, read_summary
from infrastructure.run.lock import only_trainer_of
from infrastructure.run.record import base_record, read_run_record, shown
from infrastructure.run.record_types import DecidedSetting, Summary, TrainerRunRecord
from infrastructure.run.repair import repair_run
from infrastructure.run.replication import RunReplication
from infrastructure.run.restore import restore_run, runs_at_place
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.hf_bridge.call_watchdog import LOOK_SECONDS
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from infrastructure.training.resume.fingerprint import installed_versions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, TrainingArguments

BRIDGE_PACKAGES = ("trl", "accelerate")  # which a Trainer uses besides those of Temper's loop
HERE = (Layer.CELL, Layer.FLAG, Layer.KEYWORD, Layer.FORM)  # layers that belong to this training
REFERENCE = "ref"  # TRL's name for the initial LoRA of a training run
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Settings that have an effect here; the Trainer decides everything else.
TAKES_EFFECT = (
    *("backup.", "monitor.", "output_dir", "enable_monitoring", "enable_backups", "cache."),
    *("training.checkpoint_seconds", "training.keep_"),
    *("training.deadline", "training.metrics_sinks", "training.enabled_extensions"),
    "log_level",
)


class TrainerRun:
    """The directory, checkpoints and backup of one run with a Trainer.

    Args:
        name: identifies the run on resume, on this machine and at `backup.place`.
        config: only the settings in `TAKES_EFFECT` have an effect.
        report: shows a line to the user.
        is_whole: Temper created the Trainer from `config`, which is recorded, and the same command
            resumes the run.

    Attributes:
        files: the paths of the run.
        versions: its checkpoints on this machine.
        copies: its backup at `backup.place`.
        describe_model: returns the model's entry in run.json.
        more_of_summary: returns further entries of summary.json, when the training has ended.
        before_saving: called with the trained model before it is saved.
        check_saved: called with the trained model and its saved folder; raises if they differ.
        how_to_begin_anew: a hint, shown when the run resumes, that says how to start a new run
            instead.
        name_to_accept: converts a Trainer argument's name to the name that accepts a difference in
            it.
        decided: settings that were chosen by measurement before the training, by key.

    Raises:
        ValueError: the name is not valid for a folder, or `backup.place` is not a valid
            destination.
    """

    def __init__(
        self,
        name: str,
        config: DeploymentConfig,
        report: Callable[[str], None],
        is_whole: bool = False,
    ) -> None:
        if not NAME.fullmatch(name) or redact(name) != name:
            raise InputError("trainer.invalid_run_name", name=name)
        self.name, self.config, self.report = name, config, report
        self.is_whole = is_whole
        self.files = RunDirectory((Path(config.output_dir).expanduser() / name).absolute())
        self.versions = CheckpointManager(
            self.files.checkpoints,
            retention_of(config.training),
            lambda: read_run_files(self.directory),
        )
        self.copies = RunReplication(self.files, config, report)
        self.describe_model: Callable[[torch.nn.Module], JsonObject] = name_and_size
        self.more_of_summary: Callable[[], Summary] = no_more
        self.before_saving: Callable[[torch.nn.Module], None] = nothing_before
        self.check_saved: Callable[[torch.nn.Module, Path], None] = no_check
        self.how_to_begin_anew = ""
        self.name_to_accept: Callable[[str], str] = str
        self.decided: dict[str, DecidedSetting] = {}
        self._is_place_checked = False

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        return self.files.path

    @property
    def final(self) -> Path:
        """The folder of the trained model."""
        return self.files.final

    def notes(self) -> list[str]:
        """Return a warning for each setting that the user gave and that has no effect here."""
        if self.is_whole:
            return []
        return [
            phrase("trainer.setting_without_effect", key=Setting(key))
            for key, source in self.config.sources().items()
            if source.layer in HERE and not key.startswith(TAKES_EFFECT)
        ]

    def enter(self, stack: ExitStack) -> None:
        """Lock the run until `stack` closes, so that no other process trains it.

        If an exception has just ended this run in the same process, wait up to a few seconds until
        its lock is released.

        Raises:
            ValueError: another process is training the run. The message says which.
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

    def check_place(self) -> None:
        """Check the backup destination once, before anything is trained.

        Raises:
            StorageError: the destination cannot be used. The message says what to do.
            CopyNotConfirmedError: the run is finished, and its backup stays unconfirmed because the
                destination cannot be used.
        """
        if self._is_place_checked:
            return
        try:
            self.copies.check_place()
        except StorageError as error:
            if not self.is_recorded_finished():
                raise
            self.copies.completion = Completion(problem=str(error))
            raise self._not_confirmed(self.copies.problem() or str(error)) from error
        self._is_place_checked = True
        self.copies.backup.remember_place(self.copies.backup.place_id)

    def newest(self) -> Path | None:
        """Return the newest healthy, undamaged checkpoint; None if nothing was saved yet.

        If this machine has no checkpoint, the run is restored from the backup destination.

        Raises:
            CheckpointError: all checkpoints are damaged.
            StorageError: the backup destination does not respond.
        """
        self.check_place()
        options = place_options(self.config)
        repair_run(self.files, options, self.report)
        try:
            if self.versions.checkpoints():
                return self.versions.newest()
        except CheckpointError:
            if not self._lies_at_place():
                raise
        if not self._lies_at_place():
            return None
        _, checkpoint = restore_run(self.name, options, self.directory.parent, report=self.report)
        where = self.shown_place
        self.report(phrase("trainer.run_restored", name=self.name, destination=where))
        return checkpoint

    def none_found(self) -> str:
        """Return a line that says that no earlier run was found, and where Temper searched."""
        backup = self.copies.backup
        there = ""
        if (place := self.shown_place) is not None and not backup.is_missing:
            code = (
                "trainer.nor_at_new_destination" if backup.is_new else "trainer.nor_at_destination"
            )
            there = phrase(code, destination=place)
        return phrase(
            "trainer.no_earlier_run", run=self.name, folder=self.directory.parent, there=there
        )

    @property
    def shown_place(self) -> str | None:
        """The backup destination as shown to the user; None if there is none."""
        place = self.copies.backup.options.place
        return None if place is None else redact_urls(open_place(place).url)

    def how_to_resume(self) -> str:
        """Return an instruction for resuming this run after a stop."""
        if self.is_whole:
            return phrase("trainer.run_command_again")
        return how_to_run_again(read_run_record(self.files))

    def copies_line(self) -> str:
        """Return a line about the state of the backup, or about how to set up a backup."""
        if not self.is_whole and not self.copies.has_place:
            return phrase("monitoring.trainer_not_backed_up")
        return self.copies.line()

    def _lies_at_place(self) -> bool:
        """Return whether a backup destination is configured and contains this run."""
        if not self.copies.has_place or self.copies.backup.is_missing:
            return False
        return self.name in runs_at_place(place_options(self.config))

    def record(self, parts: TrainerParts, num_examples: int | None) -> None:
        """Write run.json before the first step, unless it already exists."""
        if self.files.has_record():
            return
        args = parts.args
        settings = {**self._settings(), **_arguments(args)}
        versions = installed_versions(*BRIDGE_PACKAGES)
        record: TrainerRunRecord = {
            **base_record(self.files, settings, versions, str(parts.device), 1),
            TRAINER_KEY: {"arguments_class": type(args).__name__},
            "settings": self.config.to_dict(),
            "decided": self.decided,
            "precision": precision_name(args),
            "model": self.describe_model(parts.model),
            "data": {"num_examples": num_examples},
        }
        if self.is_whole:
            record["configuration"] = self.config.to_dict()
        write_record(self.files.run_file, record)

    def _settings(self) -> dict[str, tuple[object, str]]:
        """Return the settings that have an effect, each with its value and source.

        If Temper created the Trainer, all settings have an effect.
        """
        return {
            key: (self.config.value(key), source.place)
            for key, source in self.config.sources().items()
            if self.is_whole or key.startswith(TAKES_EFFECT)
        }

    def save_model(self, model: torch.nn.Module) -> None:
        """Save the trained model and its tokenizer in `final/`, unless an intact one exists.

        Raises:
            OSError: the disk returns an error.
            CheckpointError: the saved model differs from the trained one, and was removed.
        """
        recover_directory(self.final)
        if not self._is_saved():
            self.before_saving(model)
            with whole_directory(self.final) as part:
                if self.files.tokenizer.is_dir():
                    shutil.copytree(self.files.tokenizer, part, dirs_exist_ok=True)
                if (save_pretrained := getattr(model, "save_pretrained", None)) is not None:
                    with without_progress_bars(), router_logits_off(model):
                        save_pretrained(part, **_adapters_but_reference(model))
                    if (part / "adapter_config.json").is_file():
                        write_generation_config(model, part)
                        write_lora_card(part, model)
                else:
                    save_model(model, str(part / "model.safetensors"))
                self.check_saved(model, part)
                write_sums(part)

    def _is_saved(self) -> bool:
        """Return whether `final/` exists and is intact."""
        if not self.final.is_dir():
            return False
        try:
            damaged = damaged_files(self.final)
        except DamagedFileError as error:
            damaged = [str(error)]
        if damaged:
            self.report(phrase("trainer.model_written_again", damaged=damaged))
        return not damaged

    def save_tokenizer(self, processing_class: "PreTrainedTokenizerBase") -> None:
        """Save the tokenizer, which a resumed run needs, completely or not at all."""
        with whole_directory(self.files.tokenizer) as part:
            processing_class.save_pretrained(part)

    def is_recorded_finished(self) -> bool:
        """Return whether summary.json says that the run is finished."""
        return bool(read_summary(self.files).get("status") == RunStatus.FINISHED)

    def complete(self) -> None:
        """Wait until the backup destination confirms the whole finished run.

        Raises:
            CopyNotConfirmedError: the destination does not confirm it. All files are intact on this
                machine.
        """
        complete_finished(self.files, self.copies, self.config.backup.finish_seconds)
        if (problem := self.copies.problem()) is not None:
            raise self._not_confirmed(problem)

    def _not_confirmed(self, problem: str) -> CopyNotConfirmedError:
        """Show a problem with the backup, and return a `CopyNotConfirmedError`.

        The problem is shown here because the exception is a SystemExit, whose text Python does not
        show.
        """
        self.report(problem)
        return CopyNotConfirmedError(problem)


def nothing_before(_model: torch.nn.Module) -> None:
    """Do nothing. This is the default of `TrainerRun.before_saving`."""


def no_check(_model: torch.nn.Module, _folder: Path) -> None:
    """Do nothing. This is the default of `TrainerRun.check_saved`."""


def no_more() -> Summary:
    """Return no entries. This is the default of `TrainerRun.more_of_summary`."""
    return {}


def without_reference(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's weights without TRL's reference LoRA."""
    return {name: tensor for name, tensor in tensors.items() if REFERENCE not in name.split(".")}


def _adapters_but_reference(model: torch.nn.Module) -> dict[str, list[str]]:
    """Return arguments for `save_pretrained` that leave out TRL's reference LoRA."""
    names = list(getattr(model, "peft_config", {}))
    if REFERENCE not in names:
        return {}
    return {"selected_adapters": [name for name in names if name != REFERENCE]}


def precision_name(args: "TrainingArguments") -> str:
    """Return the precision of the training: bf16, fp16 or fp32."""
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"


def name_and_size(model: torch.nn.Module) -> JsonObject:
    """Return the name and parameter counts of a user's model."""
    path = getattr(getattr(model, "config", None), "_name_or_path", None)
    counts = count_parameters(model)
    return {
        "name": redact(str(path or type(model).__name__)),
        "num_parameters": counts.total,
        "num_trainable": counts.trainable,
    }


def _arguments(args: "TrainingArguments") -> dict[str, tuple[object, str]]:
    """Return the Trainer's arguments that differ from their defaults, with value and source.

    Secrets are masked.
    """
    given = {
        field.name: args.to_dict().get(field.name)
        for field in dataclasses.fields(args)
        if field.init and getattr(args, field.name, None) != field.default
    }
    texts = {k: shown(v) for k, v in given.items() if v is not None and v != {} and v != []}
    source = f"{type(args).__name__} of the Trainer"
    return {f"trainer.{key}": (value, source) for key, value in redact_mapping(texts).items()}
