"""Everything in a Trainer that determines its result, as JSON values to compare on resume.

Each argument, model, function and collator of the Trainer counts as determining the result, unless
it is listed here as harmless or as affecting only rounding.
"""

import dataclasses
import gc
import re
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import numpy as np
import torch

from infrastructure.config.merging.plugin_names import code_of
from infrastructure.config.registries import EXTENSIONS
from infrastructure.core.checksums import text_hash
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject, JsonValue
from infrastructure.core.lookup import meant_hint, nearest
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.optional import require
from infrastructure.data.store.fingerprints import tokenizer_content
from infrastructure.models.preserve import preserve
from infrastructure.models.weights_hash import frozen_hash, model_hash, weights_hash
from infrastructure.run.compatibility import (
    PACKAGE_NAMES,
    Difference,
    Facts,
    Verdict,
    version_differences,
)
from infrastructure.run.identity import (
    OPTIMIZER,
    PART_NAMES,
    ObjectReader,
    block_size,
    is_ours,
    is_own,
    new_key,
    part_differences,
    row_digest,
)
from infrastructure.training.extensions.extension_hooks import Extension, Hook
from infrastructure.training.hf_bridge.trainer_run import BRIDGE_PACKAGES, TrainerRun
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from infrastructure.training.resume.fingerprint import (
    MachineFacts,
    config_facts,
    machine_facts,
    processing_facts,
)

if TYPE_CHECKING:
    from transformers import TrainingArguments

# Locations, display, logging and saving, and how rows reach memory.
HARMLESS = frozenset(
    {
        *("output_dir", "run_name", "project", "logging_dir", "overwrite_output_dir", "report_to"),
        *("disable_tqdm", "log_level", "log_level_replica", "log_on_each_node", "debug"),
        *("logging_strategy", "logging_first_step", "logging_steps", "logging_nan_inf_filter"),
        *("save_strategy", "save_steps", "save_total_limit", "save_safetensors", "save_only_model"),
        *("save_on_each_node", "enable_jit_checkpoint", "resume_from_checkpoint"),
        *("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo"),
        *("hub_always_push", "hub_revision", "hub_model_revision", "push_to_hub_revision"),
        *("overwrite_hub_revision", "trackio_space_id", "trackio_static_space_id"),
        *("trackio_bucket_id", "trl_project", "wandb_entity", "wandb_project", "wandb_run_group"),
        *("wandb_log_unique_prompts", "log_completions", "log_completions_steps"),
        *("log_completions_hub_repo", "log_unique_prompts", "log_multimodal"),
        *("num_completions_to_print", "include_num_input_tokens_seen", "include_tokens_per_second"),
        *("skip_memory_metrics", "torch_empty_cache_steps", "do_train", "do_eval", "do_predict"),
        *("prediction_loss_only", "include_for_metrics", "include_inputs_for_metrics"),
        *("eval_on_start", "eval_accumulation_steps", "eval_do_concat_batches"),
        *("eval_use_gather_object", "batch_eval_metrics"),
        *("use_cpu", "no_cuda", "local_rank", "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb"),
        *("ddp_broadcast_buffers", "ddp_find_unused_parameters", "ddp_static_graph"),
        *("dataloader_pin_memory", "dataloader_prefetch_factor"),
        *("dataloader_multiprocessing_context", "dataset_num_proc", "ds3_gather_for_generation"),
        *("vllm_gpu_memory_utilization", "vllm_server_base_url", "vllm_server_host"),
        *("vllm_server_port", "vllm_server_timeout", "vllm_group_port", "vllm_enable_sleep_mode"),
    }
)
# The things that they name or create are compared directly.
COMPARED_BY_CONTENT = frozenset(
    {
        *("chat_template_path", "teacher_model_name_or_path", "teacher_model_revision"),
        *("teacher_tokenizer_name_or_path", "student_model_revision", "reward_model_path"),
        *("sft_model_path", "model_name_or_path", "model_revision", "trust_remote_code"),
        *("dataset_text_field", "lr_scheduler", "optimizer"),
    }
)
# The same sums in another order, or random numbers drawn at other moments.
ROUNDS_OTHERWISE = frozenset(
    {
        *("eval_strategy", "eval_steps", "eval_delay", "per_device_eval_batch_size"),
        *("num_generations_eval", "generate_during_eval", "eval_packing", "bf16_full_eval"),
        *("fp16_full_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs"),
        *("activation_offloading", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("use_liger_kernel", "liger_kernel_config", "dataloader_num_workers"),
        *("dataloader_persistent_workers", "full_determinism", "precompute_ref_batch_size"),
        *("vllm_mode", "vllm_tensor_parallel_size", "cache_implementation", "jit_mode_eval"),
        "tf32",  # not supported by every GPU
    }
)
# These decide which version is the best, and with it the final model.
OF_THE_BEST = frozenset(
    {
        *("eval_strategy", "eval_steps", "eval_delay", "eval_packing", "bf16_full_eval"),
        *("fp16_full_eval", "num_generations_eval"),
    }
)
# How a model is loaded: the weights and the form of attention are compared elsewhere.
OF_LOADING = frozenset(
    {
        *("device_map", "attn_implementation", "revision", "use_safetensors", "cache_dir", "token"),
        *("local_files_only", "trust_remote_code", "low_cpu_mem_usage", "use_cache"),
    }
)
# A Trainer takes these from the checkpoint, whatever its arguments are by then.
IN_THE_CHECKPOINT = (
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim"),
    "optim_args",
)
# Arguments that Temper derives from the length of its own runs. They are compared as
# configured, so that a longer training is not refused because of them.
FITTED = {"warmup_steps": "training.warmup_steps"}
SCHEDULER, LORA = "lr_scheduler", "lora"
OWN_CALLBACKS = "own_callbacks"  # most only observe, and the others cannot be identified
FIXED = (*IN_THE_CHECKPOINT, OPTIMIZER, SCHEDULER)
# A LoRA of another shape cannot hold a checkpoint's tensors.
SHAPE_OF_LORA = frozenset(
    {
        *("r", "rank_pattern", "target_modules", "target_parameters", "modules_to_save", "bias"),
        *("peft_type", "use_dora", "layers_to_transform", "layers_pattern", "exclude_modules"),
        *("trainable_token_indices", "layer_replication", "fan_in_fan_out"),
    }
)
MACHINE_NAMES = (*("device", "driver", "deterministic", "world_size", "num_threads", "attention"),)
# Settings of an optimizer's fused step, and values that its schedule changes.
OF_THE_STEP = frozenset({"params", "fused", "foreach", "capturable", "lr", "initial_lr"})
OF_THE_SCHEDULE = frozenset({"last_epoch", "base_lrs", "verbose"})
# Attributes of a Trainer from which its other parts are made, or that are compared under another
# name.
NO_PARTS = frozenset(
    {
        *(
            "model",
            "model_wrapped",
            "model_init",
            "processing_class",
            "tokenizer",
            "args",
            "deepspeed",
        ),
        *("optimizer", "lr_scheduler", "train_dataset", "eval_dataset", "accelerator", "state"),
        *("control", "callback_handler", "preprocess_logits_for_metrics", "hp_name", "hp_space"),
        *("objective", "compute_objective", "is_fsdp_enabled", "optimizer_cls_and_kwargs"),
        *(
            "label_smoother",
            "gather_function",
            "_processor",
            "_tokenizer",
            "image_processor",
            "feature_extractor",
        ),
    }
)
WATCHING = ("transformers.integrations", "transformers.utils.notebook")
DISPLAYS = ("ProgressCallback", "PrinterCallback")


class TrainerFacts(MachineFacts):
    """Everything that determines the result of a Trainer's training.

    Attributes:
        key: the run's key for hashing rows.
        arguments: the Trainer's arguments by name, without the harmless ones.
        given: names of the arguments that differ from their defaults.
        parts: see `identity.PART_NAMES`.
        unseen: descriptions of what cannot be compared.
    """

    key: str
    arguments: dict[str, JsonValue]
    given: list[str]
    parts: dict[str, JsonValue]
    unseen: list[str]
    num_threads: int | None
    attention: str | None


class BeforeLoading(TypedDict):
    """Settings of the user's optimizer and schedule before the Trainer loads a checkpoint."""

    optimizer: list[JsonValue] | None
    scheduler: JsonValue


def trainer_of(callback: object) -> Any:
    """Return the Trainer to which a callback was added, or None."""
    trainer_class = require("transformers", "TemperCallback").Trainer
    for one in gc.get_objects():
        if issubclass(type(one), trainer_class):
            handler = vars(one).get("callback_handler")
            if handler is not None and any(each is callback for each in handler.callbacks):
                return one
    return None


def before_loading(trainer: Any) -> BeforeLoading:
    """Return settings of the user's optimizer and schedule that loading a checkpoint overwrites."""
    optimizer, scheduler = vars(trainer).get("optimizer"), vars(trainer).get("lr_scheduler")
    return {
        "optimizer": None if optimizer is None else _groups(optimizer),
        "scheduler": None if scheduler is None else _schedule(scheduler),
    }


def lora_of(facts: Facts) -> Facts:
    """Reduce facts to those about the LoRA, which must be compared before PEFT loads the LoRA.

    Loading would fail if the LoRA's shape differs.
    """
    lora = facts["parts"].get(LORA)
    return {**facts, "arguments": {}, "parts": {} if lora is None else {LORA: lora}}


def facts_before_loading(trainer: Any, was: Facts) -> Facts:
    """Return the facts `was`, with the facts about the LoRA replaced by those of the Trainer's
    current LoRA.

    Library versions and all parts besides the LoRA are left out.
    """
    return lora_of({**was, "versions": {}, "parts": {LORA: _lora(trainer.model)}})


class FactsReader:
    """A reader of everything that determines the result of a Trainer's training.

    Args:
        trainer: the Trainer. None: only the objects that a Trainer passes to callbacks are known.
        was: the facts in the checkpoint from which the run resumes; empty for a new run.
        before: settings before the Trainer loaded a checkpoint. None: unknown.
    """

    def __init__(
        self,
        run: TrainerRun,
        parts: TrainerParts,
        trainer: Any,
        was: Facts,
        before: BeforeLoading | None,
    ) -> None:
        self.run, self.parts, self.trainer = run, parts, trainer
        self.was, self.before = was, before
        self.key: str = was.get("key") or new_key()
        self.reader = ObjectReader(self._known)

    def read(
        self, dataset: object, processing_class: object, others: Iterable[Hook]
    ) -> TrainerFacts:
        """Return everything that determines the result of the training.

        Args:
            dataset: the training dataset of the Trainer's data loader.
            others: hooks of the user.
        """
        args, device = self.parts.args, self.parts.device
        facts = machine_facts(device, args.world_size)
        parts = {
            **self._of_data(dataset),
            **self._of_model(),
            **processing_facts(processing_class),
            **self._of_trainer(),
            **self._of_optimizer(),
            **self._of_hooks(others),
        }
        arguments, given = self._arguments(args)
        packages = {*BRIDGE_PACKAGES, *self.reader.packages} - {*facts["versions"]}
        config = getattr(self.parts.model, "config", None)
        return {
            **facts,
            "versions": {**facts["versions"], **_versions(packages)},
            "num_threads": torch.get_num_threads() if device.type == "cpu" else None,
            "attention": getattr(config, "_attn_implementation", None),
            "key": self.key,
            "arguments": arguments,
            "given": given,
            "parts": {name: part for name, part in parts.items() if part is not None},
            "unseen": list(dict.fromkeys(self.reader.unseen)),
        }

    def _arguments(self, args: "TrainingArguments") -> tuple[dict[str, JsonValue], list[str]]:
        arguments, given = {}, []
        for field in dataclasses.fields(args):
            name = field.name
            if name in HARMLESS or name in COMPARED_BY_CONTENT or not hasattr(args, name):
                continue
            value = getattr(args, name)
            if self.run.is_whole and name in FITTED:
                value = self.run.config.value(FITTED[name])
            if isinstance(value, Mapping) and name.endswith("model_init_kwargs"):
                value = {k: v for k, v in value.items() if k not in OF_LOADING}
            arguments[name] = self.reader.read(value, name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if value != default:
                given.append(name)
        return arguments, given

    def _known(self, value: Any) -> JsonValue:
        """Return a model, tensor, dtype, device or tokenizer in comparable form; None for other
        values.
        """
        if value is self.trainer and value is not None:
            return "the Trainer"
        if isinstance(value, torch.nn.Module):
            return {
                "class": type(value).__qualname__,
                "weights": model_hash(value),
                "config": config_facts(getattr(value, "config", None)),
            }
        if isinstance(value, torch.Tensor):
            return weights_hash([("tensor", value)])
        if isinstance(value, torch.dtype | torch.device):
            return str(value)
        if hasattr(value, "get_vocab") and hasattr(value, "special_tokens_map"):
            return text_hash(tokenizer_content(value))
        return None

    def _of_data(self, dataset: Any) -> dict[str, JsonValue]:
        held_out = getattr(self.trainer, "eval_dataset", None)
        parts: dict[str, JsonValue] = {"data": self._rows("data", dataset)}
        if held_out is not None:
            parts["held_out_data"] = self._rows("held_out_data", held_out)
        if (transform := transform_of(dataset)) is not None:
            parts["data_transform"] = self.reader.read(transform, "data_transform")
        return parts

    def _rows(self, name: str, dataset: Any) -> JsonValue:
        if isinstance(dataset, Mapping):
            return {str(k): self._rows(f"{name}.{k}", one) for k, one in dataset.items()}
        if dataset is None:
            return None
        known: Any = self.was.get("parts", {})
        for part in name.split("."):
            known = known.get(part, {}) if isinstance(known, Mapping) else {}
        num_hashed = known.get("num_hashed") if isinstance(known, Mapping) else None
        facts: RowsFacts = rows_facts(dataset, self.key, self.parts.device, num_hashed)
        count, num_hashed = facts["num_examples"], facts["num_hashed"]
        if count is None or num_hashed < count:
            which = (
                phrase("trainer.rows_unseen")
                if not num_hashed
                else phrase("trainer.rows_after_first", num_hashed=num_hashed)
            )
            self.reader.unseen.append(f"{which} {name} ({type(dataset).__name__})")
        return cast(JsonObject, facts)

    def _of_model(self) -> dict[str, JsonValue]:
        model = self.parts.model
        inner = _inner(model)
        parts: dict[str, JsonValue] = {
            "base_model": frozen_hash(model),
            "model_config": config_facts(getattr(inner, "config", None)),
            LORA: _lora(model),
        }
        if is_own(type(inner)):
            parts["model_code"] = self.reader.code_of(type(inner), "model")
        if hasattr(self.trainer, "generation_config") or hasattr(self.trainer, "num_generations"):
            parts["generation_config"] = config_facts(getattr(inner, "generation_config", None))
        return parts

    def _of_trainer(self) -> dict[str, JsonValue]:
        """Return all models, functions, collators and callbacks of the Trainer in
        comparable form.
        """
        trainer = self.trainer
        if trainer is None:
            self.reader.unseen.append(phrase("trainer.trainer_parts"))
            return {}
        of_trainer = self.reader.code_of(type(trainer), "trainer")
        parts: dict[str, JsonValue] = {"trainer": of_trainer}
        for name, value in vars(trainer).items():
            if name not in NO_PARTS and not name.startswith("__") and _is_part(value):
                where = parts if name in PART_NAMES else of_trainer
                where[name] = self.reader.read(value, name)
        args = trainer.args
        if not args.load_best_model_at_end and args.metric_for_best_model is None:
            parts.pop("compute_metrics", None)
        callbacks = [c for c in trainer.callback_handler.callbacks if not _watches(c)]
        own = [callback for callback in callbacks if is_own(type(callback))]
        theirs = [callback for callback in callbacks if not is_own(type(callback))]
        for name, some in (("callbacks", theirs), (OWN_CALLBACKS, own)):
            parts[name] = sorted(map(self._callback, some), key=str) or None
        return parts

    def _callback(self, callback: object) -> JsonValue:
        """Return the code and settings of a callback, without counters that change during
        training.
        """
        code = self.reader.code_of(type(callback), "callbacks")
        settings = {
            name: value
            for name, value in vars(callback).items()
            if name.startswith("early_stopping") and not name.endswith("counter")
        }
        return {**code, **self.reader.read(settings, "callbacks")}  # type: ignore[dict-item]

    def _of_optimizer(self) -> dict[str, JsonValue]:
        parts = self.parts
        optimizer = getattr(parts.optimizer, "optimizer", parts.optimizer)
        scheduler = getattr(parts.scheduler, "scheduler", parts.scheduler)
        defaults = {k: v for k, v in optimizer.defaults.items() if k not in OF_THE_STEP - {"lr"}}
        described: JsonObject = {
            **self.reader.code_of(type(optimizer), OPTIMIZER),
            "defaults": self.reader.read(defaults, OPTIMIZER),
        }
        groups = self.before["optimizer"] if self.before else None
        if not self.was:
            groups = _groups(optimizer)
        if groups is not None:
            described["groups"] = groups
        described_parts: dict[str, JsonValue] = {OPTIMIZER: described}
        if not getattr(self.trainer, "_created_lr_scheduler", True):  # else arguments describe it
            code: JsonObject = {**self.reader.code_of(type(scheduler), SCHEDULER)}
            code["factors"] = self.reader.read(getattr(scheduler, "lr_lambdas", None), SCHEDULER)
            holds = self.before["scheduler"] if self.before else None
            if not self.was:
                holds = _schedule(scheduler)
            if holds is not None:
                code["holds"] = holds
            described_parts[SCHEDULER] = code
        return described_parts

    def _of_hooks(self, others: Iterable[Hook]) -> dict[str, JsonValue]:
        own = [h for h in others if isinstance(h, Extension) and not is_ours(type(h))]
        code = code_of(self.run.config).get(EXTENSIONS.group, {})
        read = {name: self.reader.read(part, "extensions") for name, part in code.items()}
        for hook in own:
            read[type(hook).__qualname__] = self.reader.code_of(type(hook), "extensions")
        parts: dict[str, JsonValue] = {"extensions": read or None}
        training = self.run.config.training
        if self.run.is_whole and training.early_stopping_patience is not None:
            parts["early_stopping"] = training.early_stopping_patience
        return parts


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _lora(model: Any) -> JsonValue:
    """Return the settings of all PEFT adapters of the model, or None if it has none."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping):
        return None
    return {str(name): config_facts(config) for name, config in configs.items()}


def _is_part(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(callable(one) and not _is_metric(one) for one in value)
    if isinstance(value, dict):
        return any(map(_is_part, value.values()))
    if is_ours(value) or is_ours(type(value)):
        return False
    return callable(value) and not _is_metric(value)


def _is_metric(value: Any) -> bool:
    return isinstance(value, type) and value.__module__ == "builtins"  # a defaultdict's factory


def _watches(callback: object) -> bool:
    """Return whether a callback only observes the training."""
    kind = type(callback)
    return shows_logs(callback) or kind.__name__ == "DefaultFlowCallback" or is_ours(kind)


def shows_logs(callback: object) -> bool:
    """Return whether a callback of transformers only shows logs or writes them somewhere."""
    kind = type(callback)
    return kind.__module__.startswith(WATCHING) or kind.__name__ in DISPLAYS


def _groups(optimizer: torch.optim.Optimizer) -> list[JsonValue]:
    """Return the settings of each parameter group of the optimizer, with its initial
    learning rate.
    """
    reader = ObjectReader(lambda v: str(v) if isinstance(v, torch.Tensor) else None)
    groups: list[JsonValue] = []
    for group in optimizer.param_groups:
        settings = {k: v for k, v in group.items() if k not in OF_THE_STEP}
        settings["lr"] = group.get("initial_lr", group["lr"])
        groups.append(reader.read(settings, OPTIMIZER))
    return groups


def _schedule(scheduler: Any) -> JsonValue:
    reader = ObjectReader()
    plain = {
        k: v
        for k, v in vars(scheduler).items()
        if k not in OF_THE_SCHEDULE and isinstance(v, bool | int | float | str | list | tuple)
    }
    plain = {k: v for k, v in plain.items() if not _is_part(v) and not k.startswith("_")}
    return reader.read(plain, SCHEDULER)


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in sorted(packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def known_names() -> list[str]:
    """Return the names of everything that is compared on resume.

    They include the arguments of all imported subclasses of TrainingArguments.
    """
    return [*PART_NAMES, *MACHINE_NAMES, *PACKAGE_NAMES, *argument_names()]


def checked_names(accept: Collection[str], is_whole: bool = False) -> frozenset[str]:
    """Check the names in `accept`, and return them as a set.

    Args:
        is_whole: Temper created the Trainer from its configuration; error messages then refer to
            settings.

    Raises:
        ValueError: a name is unknown (the message suggests the nearest one) or cannot be accepted.
    """
    known = known_names() if accept else []
    for name in accept:
        if name in FIXED:
            about = {"reason": _why_not(name), "new_run": _how_to_start_new_run(is_whole)}
            raise InputError("trainer.accept_without_effect", name=name, **about)
        if name not in known:
            meant = nearest(name, known)
            hint = meant_hint(meant)
            raise InputError("trainer.accept_unknown_name", name=name, hint=hint)
    return frozenset(accept)


def argument_names() -> list[str]:
    """Return the compared arguments of TrainingArguments and all its imported subclasses."""
    classes = [require("transformers", "TemperCallback").TrainingArguments]
    names: dict[str, None] = {}
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        names |= dict.fromkeys(kind.__dataclass_fields__)
    return [name for name in names if name not in HARMLESS | COMPARED_BY_CONTENT]


def _why_not(name: str) -> str:
    return phrase("trainer.taken_from_checkpoint", name=name)


def _how_to_start_new_run(is_whole: bool) -> str:
    return phrase("trainer.start_another_run" if is_whole else "trainer.use_another_name")


class TrainerJudge:
    """A judge of the differences between a Trainer's run and its checkpoint.

    It implements `compatibility.Judge`.

    Args:
        is_whole: Temper created the Trainer from its configuration, so differences are accepted by
            a setting.
        name_to_accept: converts an argument's name to the name that accepts a difference in it.
    """

    def __init__(self, is_whole: bool = False, name_to_accept: Callable[[str], str] = str) -> None:
        self.is_whole, self.name_to_accept = is_whole, name_to_accept

    def differences(self, was: Facts, now: Facts) -> Iterator[Difference]:
        """Yield differences in arguments, parts, machine and library versions."""
        same_libraries = was["versions"] == now["versions"]
        explained = False
        for difference in self._arguments(was, now, same_libraries):
            explained |= difference.name in IN_THE_CHECKPOINT
            yield difference
        for difference in self.part_differences(
            was["parts"], now["parts"], same_libraries=same_libraries
        ):
            if difference.name != OPTIMIZER or not explained:
                yield difference
        for name in MACHINE_NAMES:
            if was.get(name) != now.get(name):
                yield Difference(name, was.get(name), now.get(name), Verdict.ROUNDS_OTHERWISE)
        yield from version_differences(was, now)

    def part_differences(
        self, was: Facts, now: Facts, *, same_libraries: bool
    ) -> Iterator[Difference]:
        """Yield differences in parts, such as data or model."""
        never = Verdict.NEEDS_A_NEW_RUN
        verdicts = {OPTIMIZER: never, SCHEDULER: never, OWN_CALLBACKS: Verdict.ROUNDS_OTHERWISE}
        if _has_other_shape(was.get(LORA), now.get(LORA)):
            verdicts[LORA] = never
        yield from part_differences(was, now, same_libraries=same_libraries, verdicts=verdicts)

    def _arguments(self, was: Facts, now: Facts, same_libraries: bool) -> Iterator[Difference]:
        before, current = was["arguments"], now["arguments"]
        keeps_best = bool(current.get("load_best_model_at_end"))
        for name in dict.fromkeys([*before, *current]):
            if before.get(name) == current.get(name):
                continue
            is_new = name not in before or name not in current  # with another version
            given = (was if name in before else now)["given"]
            if is_new and not same_libraries and name not in given:
                continue
            verdict = Verdict.CHANGES_THE_RESULT
            if name in IN_THE_CHECKPOINT:
                verdict = Verdict.NEEDS_A_NEW_RUN
            elif name in ROUNDS_OTHERWISE and not (keeps_best and name in OF_THE_BEST):
                verdict = Verdict.ROUNDS_OTHERWISE
            yield Difference(name, before.get(name), current.get(name), verdict)

    def how_to_accept(self, names: Sequence[str]) -> str:
        """Return the setting or argument that accepts differences in `names`."""
        if self.is_whole:
            accepted = dict.fromkeys(map(self.name_to_accept, names))
            return format(Setting("accept", ",".join(accepted)))
        return f"TemperCallback(..., accept={list(names)!r})"

    def why_never(self, names: Sequence[str]) -> str:
        """Return the reason why differences in `names` cannot be accepted."""
        fixed = [name for name in names if name in FIXED]
        other = [phrase("trainer.shape_is_fixed", name=name) for name in names if name not in FIXED]
        return "; ".join([*map(_why_not, fixed), *other])

    def other_remedies(self, refused: Sequence[Difference]) -> list[str]:
        """Return the remedy of starting a new run under another name."""
        return [_how_to_start_new_run(self.is_whole)]


def _has_other_shape(was: Any, now: Any) -> bool:
    if not isinstance(was, Mapping) or not isinstance(now, Mapping) or was.keys() != now.keys():
        return was != now
    return any(
        was[adapter][key] != now[adapter][key]
        for adapter in was
        for key in SHAPE_OF_LORA & was[adapter].keys() & now[adapter].keys()
    )


# Keyed hashes of the rows on which a Trainer trains or evaluates, in their order.
#
# Tables of `datasets` are read by column, other datasets row by row for at most `MOST_SECONDS`. On
# resume, as many rows are compared as were hashed when the run began. A stream, and a dataset that
# returns a different row each time, cannot be compared.

NUM_TWICE = 16  # rows that are read twice
SHORT = 8  # characters of a block's hash, which only says where rows differ
MOST_SECONDS = 120.0
DECODED = re.compile(r"\b(Image|Audio|Video|Pdf|Nifti)\(")  # their files may be elsewhere

Feed = Callable[[bytes | memoryview], object]


class RowsFacts(TypedDict):
    """The number of rows, the number of hashed rows, and their hash; None if unknown.

    `blocks` contains a short hash of each block of `identity.block_size` rows.
    """

    num_examples: int | None
    num_hashed: int
    rows: str | None
    blocks: NotRequired[list[str]]


class UnseenValueError(InputError):
    """An error for a row that contains a value whose content cannot be read."""


def rows_facts(
    dataset: Any, key: str, device: torch.device, num_hashed: int | None = None
) -> RowsFacts:
    """Count and hash the rows of a dataset, as far as possible.

    Args:
        key: the run's key for hashes.
        device: the device whose random state is preserved.
        num_hashed: rows that were hashed when the run began. None: as many as time allows.
    """
    try:
        num_examples = len(dataset)
    except TypeError:
        return {"num_examples": None, "num_hashed": 0, "rows": None}
    try:
        with preserve(random=device):
            if _is_table(dataset):
                count, blocks = num_examples, _blocks_of_table(dataset, key)
            else:
                if _sample(dataset, key) != _sample(dataset, key):
                    raise UnseenValueError("trainer.rows_not_reproducible")
                count, blocks = _blocks_of_rows(dataset, key, num_hashed)
    except UnseenValueError:
        return {"num_examples": num_examples, "num_hashed": 0, "rows": None}
    whole = row_digest(key)
    whole.update("".join(blocks).encode())
    return {
        "num_examples": num_examples,
        "num_hashed": count,
        "rows": whole.hexdigest(),
        "blocks": [block[:SHORT] for block in blocks],
    }


def transform_of(dataset: Any) -> object:
    """Return the function that transforms the rows of a `datasets` table; None if there is none."""
    if not _is_of_datasets(dataset):
        return None
    return dataset.format["format_kwargs"].get("transform")


def _is_of_datasets(dataset: Any) -> bool:
    is_theirs = type(dataset).__module__.partition(".")[0] == "datasets"
    return is_theirs and hasattr(dataset, "format")


def _is_table(dataset: Any) -> bool:
    return _is_of_datasets(dataset) and DECODED.search(repr(dataset.features)) is None


def _sample(dataset: Any, key: str) -> str:
    num_examples = len(dataset)
    digest = row_digest(key)
    for index in sorted({i * num_examples // NUM_TWICE for i in range(NUM_TWICE)}):
        if index < num_examples:
            _feed(digest.update, dataset[index])
    return digest.hexdigest()


def _blocks_of_rows(dataset: Any, key: str, num_hashed: int | None) -> tuple[int, list[str]]:
    num_examples = len(dataset)
    deadline = time.monotonic() + MOST_SECONDS
    size, blocks, count = block_size(num_examples), list[str](), 0
    while count < (num_examples if num_hashed is None else min(num_hashed, num_examples)):
        if num_hashed is None and time.monotonic() > deadline:
            break
        if count % size == 0:
            digest = row_digest(key)
            blocks.append("")
        _feed(digest.update, dataset[count])
        blocks[-1] = digest.hexdigest()
        count += 1
    return count, blocks


def _feed(update: Feed, value: Any) -> None:
    """Add the content of a value to a hash, in a form that no other value has."""
    if isinstance(value, torch.Tensor):
        update(f"tensor {value.dtype} {tuple(value.shape)}\n".encode())
        plain = value.detach().cpu().contiguous().view(-1)
        update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            _feed(update, value.tolist())
        else:
            update(f"array {value.dtype} {value.shape}\n".encode())
            update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | bytes):
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        update(f"{type(value).__name__} {len(data)}\n".encode())
        update(data)
    elif isinstance(value, Mapping):
        update(f"mapping {len(value)}\n".encode())
        for key in sorted(value, key=str):
            _feed(update, str(key))
            _feed(update, value[key])
    elif isinstance(value, list | tuple):
        update(f"list {len(value)}\n".encode())
        if value and type(value[0]) is int and (numbers := _as_numbers(value)) is not None:
            update(numbers)
        else:
            for one in value:
                _feed(update, one)
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # an image
        update(f"picture {value.mode} {value.size}\n".encode())
        update(value.tobytes())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        _feed(update, vars(value))
    else:
        text = repr(value)
        if " at 0x" in text:
            raise UnseenValueError("trainer.type_not_comparable", type=type(value).__name__)
        update(f"{text}\n".encode())


def _as_numbers(values: Any) -> bytes | None:
    try:
        return b"numbers\n" + array("q", values).tobytes()
    except (TypeError, OverflowError):
        return None


def _blocks_of_table(dataset: Any, key: str) -> list[str]:
    """Return a hash of each block of rows, independent of the order of columns."""
    names = dataset.column_names
    if (shown := dataset.format["columns"]) is not None:
        names = [name for name in names if name in shown]
    table = dataset.with_format("arrow", columns=names)
    size, blocks = block_size(len(dataset)), []
    for start in range(0, len(dataset), size):
        batch, digest = table[start : start + size], row_digest(key)
        for name in sorted(names):
            digest.update(f"{len(name)} {name}\n".encode())
            _feed_column(digest.update, batch.column(name).combine_chunks())
        blocks.append(digest.hexdigest())
    return blocks


def _feed_column(update: Feed, column: Any) -> None:
    """Add the values of an Arrow column to a hash, ignoring unused bytes in its buffers."""
    pa, pc = require("pyarrow", "data"), require("pyarrow.compute", "data")
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    kind, types = column.type, pa.types
    update(f"{len(column)} {column.null_count}\n".encode())
    if column.null_count:
        update(np.asarray(column.is_null()).tobytes())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        update(np.asarray(pc.list_value_length(column).fill_null(0)).astype("<i8").tobytes())
        _feed_column(update, column.flatten())
    elif types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        children = dict(zip(names, column.flatten(), strict=True))
        for name, child in sorted(children.items()):
            update(f"{len(name)} {name}\n".encode())
            _feed_column(update, child)
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind):
        filled = column.cast(pa.large_binary()).fill_null(b"")
        update(np.asarray(pc.binary_length(filled)).astype("<i8").tobytes())
        update(b"".join(filled.to_pylist()))
    elif types.is_integer(kind) and kind != pa.uint64():
        update(np.asarray(column.cast(pa.int64()).fill_null(0)).tobytes())
    elif types.is_floating(kind):
        update(np.asarray(column.cast(pa.float64()).fill_null(0.0)).tobytes())
    elif types.is_boolean(kind):
        update(np.asarray(column.fill_null(False)).tobytes())
    else:
        update(repr(column.to_pylist()).encode())
