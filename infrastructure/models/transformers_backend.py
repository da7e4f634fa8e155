"""Loading of models and tokenizers by transformers and PEFT, from a folder or the Hub.

This module rejects models that transformers would load but that would ruin a run: models with
missing weights, which would be initialized randomly; encoders instead of language models; models
whose tokenizer has more tokens than the embedding. Weights are read from safetensors only.
"""

import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from infrastructure.core.errors import InputError
from infrastructure.core.hub import cached_file
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.models.answer_end import GENERATION_FILE, teach_ends
from infrastructure.models.loading_notes import NOTES, notes_on_loading
from infrastructure.models.lora import no_words_on_ties
from infrastructure.models.model_path import not_found
from infrastructure.models.progress_bars import download_bars_in_a_terminal
from infrastructure.models.quantization import (
    MIN_CPU_WIDTH,
    keep_trainable_layout,
    plain_weights,
    quantization_config,
    quantized_layers,
)
from infrastructure.models.refusals import refuse_flash_attention
from infrastructure.models.saved_model import (
    ModelSource,
    SourceKind,
    check_tokenizer,
    read_json,
    shapes_of,
    weight_files,
)
from infrastructure.models.source import find_source

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

SEEING = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"
# Errors that transformers raises for an unexpected value in a configuration.
WRONG_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class LoadOptions:
    """Options for loading a model.

    Attributes:
        device: the device of the model.
        dtype: dtype of the weights that are not quantized.
        attention: transformers' attn_implementation. None: its default.
        quantization: "4bit", "8bit" or None.
        trust_remote_code: run Python code that comes with the model.
        revision: branch, tag or commit of a Hub model.
        sees: load it as a vision-language model.
        dequantizes: convert quantized weights to ordinary ones.
    """

    device: torch.device
    dtype: torch.dtype
    attention: str | None = None
    quantization: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    sees: bool = False
    dequantizes: bool = False


def load_causal_lm(source: ModelSource, options: LoadOptions) -> torch.nn.Module:
    """Load a language or vision-language model from a folder or the Hub to its device.

    Raises:
        ValueError: it is missing, incomplete, damaged, or another kind of model.
    """
    config = load_config(source, options)
    if source.kind is SourceKind.FOLDER:
        weight_files(source.folder)
    model, info = load_weights(auto_class(options), source, config, options)
    if missing := info["missing_keys"]:
        raise InputError(
            "models.weights_lack_tensors",
            location=source.location,
            count=len(missing),
            name=min(missing),
        )
    stored = _stored_names(source, options)
    notes = notes_on_loading(model, source.location, info["unexpected_keys"], stored)
    if options.dequantizes and quantized_layers(model):
        model = plain_weights(model)
    setattr(model, NOTES, notes)
    return model


def _stored_names(source: ModelSource, options: LoadOptions) -> set[str]:
    """Return the name of each weight in a model's files; none if the files are unknown."""
    folder: Path | None = source.folder
    if source.kind is SourceKind.HUB:
        revision = source.revision or options.revision
        names = ("model.safetensors", "model.safetensors.index.json")
        cached = (cached_file(source.location, name, revision) for name in names)
        folder = next((file.parent for file in cached if file is not None), None)
    with suppress(InputError, OSError):  # the model is loaded; this is for a note alone
        return set() if folder is None else set(shapes_of(folder))
    return set()


def load_weights(
    auto: str, source: ModelSource, config: "PreTrainedConfig", options: LoadOptions
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Load a model with a transformers auto class; also return transformers' loading report.

    Raises:
        ValueError: it cannot be loaded, or its weights have other shapes.
    """
    transformers = require("transformers", "models.load_model")
    try:
        with download_bars_in_a_terminal():
            model, info = getattr(transformers, auto).from_pretrained(
                source.location,
                config=config,
                dtype=options.dtype,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
                **hub_arguments(source, options),
                **_placement(config, options),
            )
    except (*WRONG_VALUE, OSError, RuntimeError, ImportError, SafetensorError) as error:
        raise _cannot_load(source, error) from _cause(source, error)
    _refuse_other_shapes(source, info["mismatched_keys"])
    keep_trainable_layout(model)
    return model, info


def _placement(config: "PreTrainedConfig", options: LoadOptions) -> dict[str, object]:
    """Return the arguments for loading weights directly to the device.

    Without these arguments, a model that fits into GPU memory may not fit into CPU memory.
    """
    arguments: dict[str, object] = {}
    if options.attention is not None:
        arguments["attn_implementation"] = options.attention
    if options.quantization is not None:
        _check_quantizable(config, options)
        if getattr(config, "quantization_config", None) is None:
            kind = quantization_config(options.quantization, options.dtype)
            arguments["quantization_config"] = kind
    if options.quantization is not None or options.device.type != "cpu":
        arguments["device_map"] = {"": options.device}
    return arguments


def _check_quantizable(config: "PreTrainedConfig", options: LoadOptions) -> None:
    stored = getattr(config, "quantization_config", None)
    if stored is not None and not stored.get(f"load_in_{options.quantization}"):
        raise InputError("models.already_quantized", quantization=options.quantization)
    width = getattr(config.get_text_config(), "hidden_size", MIN_CPU_WIDTH)
    computes = options.device.type == "cpu" and not options.dequantizes
    if computes and options.quantization == "4bit" and width % MIN_CPU_WIDTH:
        raise InputError("models.width_for_4bit_on_cpu", multiple=MIN_CPU_WIDTH, width=width)


def load_config(source: ModelSource, options: LoadOptions) -> "PreTrainedConfig":
    """Load the configuration of a causal or vision-language model.

    Raises:
        ValueError: it is not available, or belongs to another kind of model.
    """
    if source.kind is SourceKind.FOLDER:
        _check_config_file(source.folder / "config.json", options)
    config = load_any_config(source, options)
    _check_causal(config, source, options)
    return config


def load_any_config(source: ModelSource, options: LoadOptions) -> "PreTrainedConfig":
    """Load the configuration of a model of any kind.

    Raises:
        ValueError: it is not available, or contains an invalid value.
    """
    transformers = require("transformers", "models.load_model")
    try:
        config = transformers.AutoConfig.from_pretrained(
            source.location, **hub_arguments(source, options)
        )
    except (OSError, ValueError, RecursionError) as error:
        raise _cannot_load(source, error) from _cause(source, error)
    except (*WRONG_VALUE, StrictDataclassError) as error:
        raise InputError(
            "models.config_value_invalid", location=source.location, error=_reason(error)
        ) from error
    return cast("PreTrainedConfig", config)


def without_weights(config: "PreTrainedConfig", options: LoadOptions) -> torch.nn.Module:
    """Create a model's layers on the meta device, without weights in memory."""
    transformers = require("transformers", "models.load_model")
    with torch.device("meta"):
        model: torch.nn.Module = getattr(transformers, auto_class(options)).from_config(
            config, trust_remote_code=options.trust_remote_code
        )
    return model


def _check_config_file(path: Path, options: LoadOptions) -> None:
    values = read_json(path)
    if values.get("model_type") is None:
        raise InputError("models.no_model_type", path=path)
    if values.get("auto_map") and not options.trust_remote_code:
        models = require("transformers.models.auto.modeling_auto", "models.load_model")
        if values["model_type"] not in models.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise InputError("models.remote_code_not_trusted", folder=path.parent)


def _check_causal(config: "PreTrainedConfig", source: ModelSource, options: LoadOptions) -> None:
    """Raise if a model is not causal.

    An encoder such as BERT would load as a language model that attends to later tokens.
    """
    saved_as = (getattr(config, "architectures", None) or [None])[0]
    if options.sees:
        _check_sees(config, source, saved_as)
        return
    known = class_names("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    is_code = options.trust_remote_code and getattr(config, "auto_map", None)
    is_encoder = getattr(config, "is_decoder", None) is False
    if not is_code and (is_encoder or (saved_as is not None and saved_as not in known)):
        sees = saved_as in class_names(SEEING)
        hint = phrase("models.hint_text_rows") * sees
        raise InputError(
            "models.not_a_causal_model",
            location=source.location,
            model_class=saved_as or config.model_type,
            hint=f";{hint}" if sees else "",
        )


def auto_class(options: LoadOptions) -> str:
    """Return the name of the transformers auto class that loads the model."""
    return "AutoModelForImageTextToText" if options.sees else "AutoModelForCausalLM"


def class_names(mapping: str) -> set[str]:
    """Return all model classes in one of transformers' mappings."""
    models = require("transformers.models.auto.modeling_auto", "models.load_model")
    known: set[str] = set()
    for names in getattr(models, mapping).values():
        known.update([names] if isinstance(names, str) else names)
    return known


def _check_sees(config: "PreTrainedConfig", source: ModelSource, saved_as: str | None) -> None:
    models = require("transformers.models.auto.modeling_auto", "models.load_model")
    is_known = config.model_type in getattr(models, SEEING)
    if not is_known or (saved_as is not None and saved_as not in class_names(SEEING)):
        raise InputError(
            "models.text_model_for_images",
            location=source.location,
            model_class=saved_as or config.model_type,
        )


def _refuse_other_shapes(
    source: ModelSource, mismatched: Iterable[tuple[str, torch.Size, torch.Size]]
) -> None:
    ordered = sorted((name, list(stored), list(wanted)) for name, stored, wanted in mismatched)
    if ordered:
        name, stored, wanted = ordered[0]
        num_more = len(ordered) - 1
        more = phrase("models.more_weights_differ", count=num_more) if num_more else ""
        raise InputError(
            "models.weight_shape_mismatch",
            location=source.location,
            name=name,
            stored=stored,
            expected=wanted,
            more=more,
        )


def _cannot_load(source: ModelSource, error: BaseException) -> InputError:
    reason = _reason(error)
    is_lookup = _cause(source, error) is None
    if is_lookup and "gated" in reason:
        return InputError("models.model_is_gated", location=source.location)
    if is_lookup:
        constants = require("huggingface_hub.constants", "models.load_from_hub")
        return not_found(source.location, hub_reachable=not constants.HF_HUB_OFFLINE)
    return InputError("models.model_not_loaded", location=source.location, reason=shortened(reason))


def _cause(source: ModelSource, error: BaseException) -> BaseException | None:
    """Return the cause of an error to show to the user. None for an error of the Hub about a file.

    Errors of the Hub have long causes of their own.
    """
    return None if isinstance(error, OSError) and source.kind is SourceKind.HUB else error


def _reason(error: BaseException) -> str:
    """Return an error's message on one line, preceded by the error's type if necessary."""
    text = " ".join(str(error).split())
    is_terse = isinstance(error, WRONG_VALUE) and not isinstance(error, ValueError)
    return f"{type(error).__name__}: {text}" if is_terse else text


def shortened(text: str, length: int = 300) -> str:
    """Shorten an error message of another library to at most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def hub_arguments(source: ModelSource, options: LoadOptions) -> dict[str, object]:
    """Return transformers' arguments about where a model comes from."""
    arguments: dict[str, object] = {"trust_remote_code": options.trust_remote_code}
    if source.kind is SourceKind.HUB:
        arguments["revision"] = source.revision or options.revision or "main"
    return arguments


def load_tokenizer(source: ModelSource, options: LoadOptions) -> "PreTrainedTokenizerBase":
    """Load the model's tokenizer, and make sure that it has an end and a padding token.

    The end token also serves as padding token if there is none. End tokens are trained even so,
    because padding is recognized by the lengths of examples.

    Raises:
        ValueError: there is no tokenizer, it is damaged, it splits text at random, or it has no
            end token.
    """
    transformers = require("transformers", "models.load_tokenizer")
    if source.kind is not SourceKind.HUB:
        check_tokenizer(source.folder)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source.location, **hub_arguments(source, options)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            "models.tokenizer_not_loaded",
            location=source.location,
            reason=shortened(" ".join(str(error).split())),
        ) from error
    ensure_special_tokens(tokenizer, source.location)
    return tokenizer


def ensure_special_tokens(tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Add a padding token if the tokenizer has none.

    Raises:
        ValueError: it has no end token, or splits text at random.
    """
    backend = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if dropout := getattr(backend, "dropout", None):
        raise InputError("models.tokenizer_is_random", location=name, dropout=dropout)
    if tokenizer.eos_token_id is None:
        raise InputError("models.no_end_of_text_token", name=name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def load_lora(folder: Path, base: torch.nn.Module) -> torch.nn.Module:
    """Load the LoRA in `folder` onto `base`, ready for further training.

    Raises:
        ValueError: it is pickled, damaged, incomplete, or made for another base model.
    """
    peft = require("peft", "models.load_adapter")
    [file] = weight_files(folder, "adapter_model")
    try:
        with no_words_on_ties():
            warnings.filterwarnings("ignore", "Found missing adapter keys")  # refused below
            model: torch.nn.Module = peft.PeftModel.from_pretrained(
                base, str(folder), is_trainable=True
            )
        # loaded once more, because only this function returns the names that do not fit
        loaded = cast(Any, model).load_adapter(
            str(folder),
            "default",
            is_trainable=True,
            key_mapping=getattr(base, "_checkpoint_conversion_mapping", None),
        )
        if (folder / GENERATION_FILE).is_file():
            transformers = require("transformers", "models.load_adapter")
            ends = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
            teach_ends(model, ends if isinstance(ends, list) else [] if ends is None else [ends])
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise InputError(
            "models.lora_base_mismatch", file=file, reason=shortened(" ".join(str(error).split()))
        ) from error
    _refuse_other_matrices(file, loaded.missing_keys, loaded.unexpected_keys)
    return model


def _refuse_other_matrices(file: Path, missing: list[str], unexpected: list[str]) -> None:
    if missing:
        raise InputError(
            "models.lora_lacks_tensors", file=file, count=len(missing), name=min(missing)
        )
    if unexpected:
        raise InputError(
            "models.lora_tensors_unused", file=file, count=len(unexpected), name=min(unexpected)
        )


def base_of_lora(folder: Path) -> ModelSource:
    """Find the base model of the LoRA in `folder`: next to it, at its recorded path, or on the Hub.

    Raises:
        ValueError: the LoRA does not name its base, the base is missing, or it is not a LoRA.
    """
    config = read_json(folder / "adapter_config.json")
    if config.get("peft_type") != "LORA":
        raise InputError(
            "models.adapter_is_not_lora", folder=folder, peft_type=config.get("peft_type")
        )
    if (folder / "base" / "config.json").is_file():
        return ModelSource(SourceKind.FOLDER, str(folder / "base"))
    name = config.get("base_model_name_or_path")
    if not name or not isinstance(name, str):
        raise InputError("models.lora_names_no_base", folder=folder)
    try:
        revision = config.get("revision")
        return replace(find_source(name), revision=None if revision is None else str(revision))
    except ValueError as error:
        raise InputError("models.lora_base_missing", folder=folder, error=error) from error


def choose_attention(
    attention: str, memory_efficient: bool | None, device: torch.device
) -> str | None:
    """Return transformers' attn_implementation for two settings. None: its default.

    Args:
        attention: `model.attention`.
        memory_efficient: `training.memory_efficient_attention`.

    Raises:
        ValueError: the settings contradict each other, or flash attention is not available.
    """
    wanted = {True: "sdpa", False: "eager", None: None}[memory_efficient]
    given = None if attention == "auto" else attention
    if wanted and given and (wanted == "eager") != (given == "eager"):
        raise InputError(
            "models.attention_settings_conflict",
            memory_efficient=memory_efficient,
            attention=given,
        )
    refuse_flash_attention(given, has_gpu=device.type == "cuda")
    return given or wanted
