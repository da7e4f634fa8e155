"""The settings and parts of a run that determine its result, to compare on resume."""

import functools
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, TypedDict

import torch

from infrastructure.config.base import ConfigSection
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import result_settings
from infrastructure.config.merging.plugin_names import CodeOfParts, code_at, code_of
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.checksums import text_hash
from infrastructure.core.hardware import gpus, processor
from infrastructure.core.json_text import JsonObject, JsonValue, as_object
from infrastructure.core.named_object import address_of
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.data.encoding.tokenization import LABELS_VERSION
from infrastructure.data.store.fingerprints import tokenizer_content
from infrastructure.models.registry import MODELS
from infrastructure.run.identity import HELD_OUT_DATA, ObjectReader, is_own, keyed, new_key
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop.session import TrainingSession

RECORDED_PACKAGES = (
    "transformers",
    "peft",
    "bitsandbytes",
    "unsloth",
    "datasets",
    "tokenizers",
    "safetensors",
    "numpy",
)


def installed_versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, and of the recorded packages and `more` that are installed."""
    # torch.__version__ names the build, which its package metadata may not: 2.13.0+cu130
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    versions |= {
        name: installed
        for name in (*RECORDED_PACKAGES, *more)
        if (installed := _installed_version(name))
    }
    return versions


@functools.cache  # imported packages do not change
def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class MachineFacts(TypedDict):
    """The hardware and software of the computation, as far as they affect the result."""

    device: str
    driver: str | None
    deterministic: bool
    world_size: int
    machine: str
    versions: dict[str, str]


class HasSettings(Protocol):
    """The configuration sections of a trainer."""

    model_config: ModelConfig
    training_config: TrainingConfig
    data_config: DataConfig
    sections: Mapping[str, ConfigSection]


def settings_of(trainer: HasSettings) -> dict[str, object]:
    """Return the settings of a trainer that determine the result, by key."""
    return result_settings(_configuration_of(trainer))


def code_of_parts(trainer: HasSettings) -> CodeOfParts:
    """Return the source code of configured user-defined parts, by kind and name."""
    code = code_of(_configuration_of(trainer))
    name = str(trainer.model_config.name)
    address = address_of(MODELS[name].build) if name in MODELS else None
    if address is not None and (model := code_at(address)) is not None:
        code["temper.models"] = {name: model}
    return code


def _configuration_of(trainer: HasSettings) -> DeploymentConfig:
    config = DeploymentConfig(
        model=trainer.model_config,
        training=trainer.training_config,
        data=trainer.data_config,
        **trainer.sections,
    )
    config.know_models(MODELS)
    return config


def machine_facts(device: torch.device, num_processes: int) -> MachineFacts:
    """Return the model of the GPU or CPU, library versions, and the number of processes."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "driver": next((gpu.driver for gpu in gpus()), None) if on_gpu else None,
        "deterministic": torch.are_deterministic_algorithms_enabled() if on_gpu else True,
        "world_size": num_processes,
        "machine": processor().model,
        "versions": installed_versions(),
    }


def counted_threads(device: torch.device, num_processes: int) -> int | None:
    """Return the number of CPU threads, which affects rounding in the result.

    None if a GPU computes, or several processes share the threads.
    """
    return torch.get_num_threads() if device.type == "cpu" and num_processes == 1 else None


def repeat_num_threads(count: object, device: torch.device, num_processes: int) -> None:
    """Use the `count` threads with which the resumed run began, but not more than there are
    cores.

    If an environment variable sets the number of threads, it takes precedence.
    """
    is_open = counted_threads(device, num_processes) and not os.environ.get(THREADS_VARIABLE)
    if isinstance(count, int) and is_open:
        torch.set_num_threads(max(1, min(count, processor().num_cores)))


# Names, locations and versions, and values that a Trainer or a method sets for its own use.
OF_NO_RESULT = frozenset(
    {
        *("_name_or_path", "transformers_version", "_commit_hash", "use_cache", "auto_map"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("_attn_implementation_internal", "base_model_name_or_path", "revision", "auto_mapping"),
        *(
            "dtype",
            "torch_dtype",
            "inference_mode",
            "peft_version",
            "architectures",
            "_from_model_config",
            "runtime_config",
        ),
        *("init_lora_weights", "loftq_config", "corda_config", "eva_config"),
    }
)


OF_A_NAME = ("tokenizer", "_name_or_path", "name_or_path")


def config_facts(config: Any) -> JsonValue:
    """Return the values of a transformers or PEFT configuration that determine the result.

    None if there is no configuration.
    """
    if not hasattr(config, "to_dict"):
        return None
    return ObjectReader().read(_without_names(config.to_dict()), "configuration")


def _without_names(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(key): _without_names(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if key not in OF_NO_RESULT
    }


def processing_facts(processing_class: Any) -> dict[str, JsonValue]:
    """Return everything that determines how a tokenizer or processor converts rows, to compare on
    resume.
    """
    if processing_class is None:
        return {}
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    template = getattr(processing_class, "chat_template", None)
    if template is None:  # a processor without one may use its tokenizer's
        template = getattr(tokenizer, "chat_template", None)
    parts: dict[str, JsonValue] = {
        "chat_template": None if template is None else text_hash(template)
    }
    if hasattr(tokenizer, "get_vocab"):
        content = tokenizer_content(tokenizer)
        parts["tokenizer"] = {name: text_hash(value) for name, value in content.items()}
    if tokenizer is not processing_class and hasattr(processing_class, "to_dict"):
        values = processing_class.to_dict()
        parts["processor"] = text_hash({k: v for k, v in values.items() if k not in OF_A_NAME})
    return parts


def code_of_objects(objects: Iterable[object], named: CodeOfParts) -> JsonValue:
    """Return the code of objects that were passed as arguments instead of being named by a
    setting.
    """
    addresses = {part["address"] for group in named.values() for part in group.values()}
    kinds = [type(one) for one in objects]
    reader = ObjectReader()
    return {
        kind.__qualname__: reader.code_of(kind, kind.__qualname__)
        for kind in kinds
        if is_own(kind) and address_of(kind) not in addresses
    } or None


def base_facts(described: JsonObject) -> dict[str, object]:
    """Return a hash of the weights from which training started, and whether they are frozen."""
    base = described.get("base_sha256") or described.get("revision")
    if second := as_object(described.get("second_base") or {}):  # assembled from two models
        base = f"{base} with {second.get('sha256') or second.get('revision')}"
    return {
        "base_model": base,
        "base_is_frozen": bool(described.get("lora") or second),
    }


class RunIdentity:
    """The identity of one run, to compare when it resumes; see `run.compatibility`.

    Attributes:
        key: the key of the hashes of rows: without it, nothing can be guessed from them. None: the
            run began without a key.
    """

    def __init__(self) -> None:
        self.key: str | None = new_key()
        self._fixed: dict[str, Any] = {}

    def resume(self, was: Mapping[str, Any]) -> None:
        """Use the key of the run whose checkpoint contains the identity `was`."""
        self.key, self._fixed = was.get("key"), {}

    def of(
        self,
        settings: HasSettings,
        session: TrainingSession,
        resolved: Mapping[str, object],
        num_processes: int,
    ) -> dict[str, Any]:
        """Return the identity of the run that `session` trains.

        Args:
            resolved: values chosen for settings that are "auto", by key.
        """
        loop, adapter = session.loop, session.loop.optimizer_step.adapter
        if not self._fixed:
            self._fixed = {
                "settings": settings_of(settings),
                "resolved": dict(resolved),
                "key": self.key,
                "data": self._keyed(loop.data.fingerprint),
                "labels": LABELS_VERSION,
                "num_examples": loop.data.num_examples,
                "precision": adapter.precision.name,
                "planned_steps": session.planned.total_steps,
                "code": (code := code_of_parts(settings)),
                "parts": self._parts(session, code),
                **base_facts(adapter.describe()),
                **machine_facts(adapter.device, num_processes),
            }
        of_now = {
            "size_grid": adapter.size_grid.value,
            "attention": adapter.attention_form(session.state.model),
            "num_threads": counted_threads(adapter.device, num_processes),
            "total_steps": loop.total_steps,
        }
        return {**self._fixed, **of_now}

    def _parts(self, session: TrainingSession, code: CodeOfParts) -> dict[str, JsonValue]:
        """Return the parts of the identity that are not settings, data files or weights."""
        step = session.loop.optimizer_step
        contents = getattr(step.data, "contents", None)
        held_out = None if contents is None else contents(held_out=True)
        extensions = [hook for hook in step.hooks.hooks if isinstance(hook, Extension)]
        parts = {
            HELD_OUT_DATA: None if held_out is None else self._keyed(held_out.tobytes().hex()),
            "model_config": config_facts(getattr(session.state.model, "config", None)),
            **processing_facts(getattr(step.adapter, "processor", None) or step.adapter.tokenizer),
            "objects": code_of_objects([step.strategy, step.adapter, *extensions], code),
        }
        if second := as_object(step.adapter.describe().get("second_base") or {}):
            parts["processor"] = second.get("processor")
        return {name: part for name, part in parts.items() if part is not None}

    def _keyed(self, rows: str) -> str:
        return rows if self.key is None else keyed(self.key, rows)
