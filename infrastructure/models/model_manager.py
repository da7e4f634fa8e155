"""ModelManager, which loads a model and its tokenizer ready for training.

It decides where the model comes from, which library loads it, in which dtype, and which parts
train. The other modules of this package do the work. Loading does not change torch's random state.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.errors import InputError
from infrastructure.core.hub import offline_where_unreachable
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.models.added_modules import added_modules, load_added
from infrastructure.models.embedded import build_embedded_model
from infrastructure.models.fitting import (
    check_length,
    check_same_lora,
    check_vocabulary,
    choose_dtype,
    describe,
)
from infrastructure.models.loading_notes import NOTES
from infrastructure.models.lora import apply_lora, expert_parameters, peft_arguments
from infrastructure.models.model_change import ModelChange
from infrastructure.models.model_inputs import (
    inner_model,
    language_model,
    language_part,
    vision_tower,
)
from infrastructure.models.processor import load_processor
from infrastructure.models.quantization import note_on_experts
from infrastructure.models.refusals import (
    refuse_pictures_by_unsloth,
    refuse_quantized_weights_that_train,
    refuse_without_effect,
)
from infrastructure.models.registry import MODELS
from infrastructure.models.router_logits import write_without_router_logits
from infrastructure.models.saved_model import (
    EXTENSIONS_MANIFEST,
    TOKENIZER_FILES,
    ModelSource,
    SourceKind,
    check_sums,
    has_processor,
    refuse_other_base,
    weight_files,
    weights_sha256,
)
from infrastructure.models.saving import load_registered
from infrastructure.models.saving_check import make_writable
from infrastructure.models.source import (
    find_source,
    registered_name,
)
from infrastructure.models.tokenizer import read_tokenizer, train_tokenizer
from infrastructure.models.transformers_backend import (
    LoadOptions,
    base_of_lora,
    choose_attention,
    ensure_special_tokens,
    load_causal_lm,
    load_config,
    load_lora,
    load_tokenizer,
    without_weights,
)
from infrastructure.models.unsloth_backend import (
    apply_unsloth_lora,
    check_unsloth_lora,
    load_unsloth,
    prepare_backend,
)
from infrastructure.models.weights_on_disk import few_blocks, layers_on_disk, weight_bytes
from infrastructure.optimization.checkpointing import checkpoint_gradients

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TokenizerTexts = Callable[[], Iterable[str]]
ModelAndTokenizer = tuple[torch.nn.Module, "PreTrainedTokenizerBase | None"]

SAVED = (SourceKind.FOLDER, SourceKind.LORA_FOLDER, SourceKind.REGISTERED_FOLDER)
WITHOUT_TEXT = (SourceKind.REGISTERED, SourceKind.REGISTERED_FOLDER)


@dataclass
class LoadedModel:
    """A loaded model with its tokenizer and its description for run.json.

    The model is in training mode on its device. The tokenizer is None if the model reads no text.
    The `notes` are shown to the user before training.
    """

    model: torch.nn.Module
    tokenizer: "PreTrainedTokenizerBase | None"
    description: JsonObject
    notes: tuple[str, ...] = ()


def extensions_folder(source: ModelSource) -> Path | None:
    """Return the folder of a model's saved extension modules; None if there are none."""
    if source.kind not in (SourceKind.FOLDER, SourceKind.LORA_FOLDER):
        return None
    folders = [source.folder]
    if source.kind is SourceKind.LORA_FOLDER:
        base = base_of_lora(source.folder)
        folders += [base.folder] if base.kind is SourceKind.FOLDER else []
    return next((f for f in folders if (f / EXTENSIONS_MANIFEST).is_file()), None)


def check_saved(source: ModelSource) -> None:
    """Compare a saved model, and the base model of a LoRA, with the checksums written on saving.

    Raises:
        DamagedFileError: a file is missing or has changed. The message names it.
    """
    if source.kind in SAVED:
        check_sums(source.folder)
    if source.kind is SourceKind.LORA_FOLDER:
        check_saved(base_of_lora(source.folder))


class ModelManager:
    """A loader of the model that a configuration names.

    Args:
        model_config: the model section of the configuration.
        device: the device of the model.
        seed: determines all new weights (the embedded model, a registered module, LoRA matrices).
        max_length: longest training example in tokens. A model with fewer positions is rejected.
        gradient_checkpointing: recompute activations in the backward pass.
        checkpointing_mode: see `checkpoint_gradients`.
        memory_efficient_attention: as in the training section.
        tokenizer_texts: returns texts for training the embedded model's tokenizer.
        tokenizer_directory: the saved tokenizer of a resumed run, which the embedded model uses
            instead of training one.

    Attributes:
        sees: the model is a vision-language model. Set before loading.
        dequantizes: see `LoadOptions`. Set before loading.
        on_disk: the weights stay on disk, see `weights_on_disk`. Set before loading.
        known_tokenizer: file of a tokenizer already trained on `tokenizer_texts`, or None.
        changes: what features change about the model. Set before loading.
        processor: the processor of a vision-language model, loaded with its tokenizer.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        *,
        device: torch.device,
        seed: int,
        max_length: int | None = None,
        gradient_checkpointing: bool = False,
        checkpointing_mode: str = "all",
        memory_efficient_attention: bool | None = None,
        tokenizer_texts: TokenizerTexts | None = None,
        tokenizer_directory: Path | None = None,
    ) -> None:
        self.config = model_config
        self.device = torch.device(device)
        self.seed = seed
        self.max_length = max_length
        self.gradient_checkpointing = gradient_checkpointing
        self.checkpointing_mode = checkpointing_mode
        self.attention = choose_attention(
            model_config.attention, memory_efficient_attention, self.device
        )
        self.tokenizer_texts = tokenizer_texts
        self.tokenizer_directory = tokenizer_directory
        self.sees = False
        self.dequantizes = False
        self.on_disk = False
        self.known_tokenizer: Path | None = None
        self.changes: Sequence[ModelChange] = ()
        self.processor: Any = None
        self._notes: list[str] = []

    def load(self) -> LoadedModel:
        """Build or load the model.

        Raises:
            ValueError: the model is missing, incomplete, or does not support a setting. The message
                names the setting or file and says what to do.
            MissingPackageError: a required package is not installed.
        """
        source = find_source(self.config.name)
        self._refuse_contradictions(source)
        check_saved(source)
        make = {
            SourceKind.EMBEDDED: self._build_embedded,
            SourceKind.REGISTERED: self._build_registered,
            SourceKind.REGISTERED_FOLDER: self._build_registered,
        }.get(source.kind, self._load_language_model)
        hashed = hash_while_loading(source)
        with own_random_state(self.seed, self.device):
            model, tokenizer = make(source)
        if tokenizer is not None:
            embeddings = language_model(model).get_input_embeddings()
            check_vocabulary(embeddings.weight.shape[0], tokenizer, self.config.name)
        self._attach_saved(source, model)
        write_without_router_logits(model)
        self._notes += make_writable(inner_model(model))
        identity = self._identity(source, model, hashed)
        if source.kind is SourceKind.LORA_FOLDER:
            refuse_other_base(source.folder, identity["base_sha256"])
        description = {"kind": str(source.kind), **identity}
        description = describe(model, self.config) | description
        return LoadedModel(model.train(), tokenizer, description, tuple(self._notes))

    def _attach_saved(self, source: ModelSource, model: torch.nn.Module) -> None:
        """Load the modules that extensions had added to a saved model.

        They are trainable in full fine-tuning. Otherwise they become trainable if their extension
        is enabled again.
        """
        folder = extensions_folder(source)
        if folder is None:
            return
        with own_random_state(self.seed, self.device):
            load_added(model, folder)
        trains = self._is_full and source.kind is SourceKind.FOLDER
        for module in added_modules(model).values():
            module.requires_grad_(trains)

    def load_few_blocks(self) -> torch.nn.Module:
        """Create a model of the same kind with random weights and few layers; see `few_blocks`."""
        _, base, options = self._read_source()
        with offline_where_unreachable() if base.kind is SourceKind.HUB else nullcontext():
            values = load_config(base, options)
        with own_random_state(self.seed, self.device):
            return few_blocks(values, options)

    def weight_bytes(self) -> int | None:
        """Return the size of the weights in bytes, without loading them.

        Return None if the weights cannot stay on disk, because the model is newly created or
        something is computed from the weights before training.
        """
        source, lora = find_source(self.config.name), self.config.lora_config
        needs_weights = lora is not None and lora.use_dora
        is_read = source.kind in (SourceKind.FOLDER, SourceKind.HUB, SourceKind.LORA_FOLDER)
        if not is_read or needs_weights or self.changes or self.sees:
            return None
        if extensions_folder(source) is not None:
            return None
        _, base, options = self._read_source()
        with offline_where_unreachable() if base.kind is SourceKind.HUB else nullcontext():
            return weight_bytes(base, options)

    def _read_source(self) -> tuple[ModelSource, ModelSource, LoadOptions]:
        """Return the source of the model, the source of its base model if it is a LoRA, and load
        options.
        """
        source = find_source(self.config.name)
        is_lora = source.kind is SourceKind.LORA_FOLDER
        base = base_of_lora(source.folder) if is_lora else source
        return source, base, self._options(trains_all=self._is_full and not is_lora)

    def load_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """Load the tokenizer without the model. Return None if the model reads no text.

        Raises:
            ValueError: the tokenizer is missing.
        """
        source = find_source(self.config.name)
        if source.kind in WITHOUT_TEXT:
            return None
        if source.kind is SourceKind.EMBEDDED:
            return self._embedded_tokenizer()
        is_lora = source.kind is SourceKind.LORA_FOLDER
        base = base_of_lora(source.folder) if is_lora else source
        with offline_where_unreachable() if base.kind is SourceKind.HUB else nullcontext():
            return self._tokenizer_of(source, base, self._options(trains_all=False))

    def _refuse_contradictions(self, source: ModelSource) -> None:
        """Raise if a setting has no effect on this kind of model."""
        config = self.config
        is_trained = source.kind not in (*WITHOUT_TEXT, SourceKind.EMBEDDED)
        is_text = source.kind not in WITHOUT_TEXT
        is_seeing = self.sees and is_trained
        for change in self.changes:
            change.check_source(source, config.name)
        refusals = {
            "adapter": (self.sees, is_trained, phrase("models.reads_no_images")),
            "train_vision": (
                config.train_vision,
                is_seeing,
                phrase("models.not_trained_on_images"),
            ),
            "quantization": (
                config.quantization,
                is_trained,
                phrase("models.no_trained_weights"),
            ),
            "backend": (
                config.backend == "unsloth",
                is_trained,
                phrase("models.not_loaded_by_unsloth"),
            ),
            "trust_remote_code": (
                config.trust_remote_code,
                is_trained,
                phrase("models.comes_without_code"),
            ),
            "revision": (
                config.revision,
                source.kind is SourceKind.HUB,
                phrase("models.not_a_hub_model"),
            ),
            "lora_config": (config.lora_config, is_text, phrase("models.not_a_language_model")),
            "dtype": (config.dtype != "auto", is_text, phrase("models.not_a_language_model")),
            "attention": (self.attention, is_text, phrase("models.not_a_language_model")),
        }
        if self.sees and config.backend == "unsloth":
            refuse_pictures_by_unsloth()
        for key, (is_set, has_effect, reason) in refusals.items():
            if is_set and not has_effect:
                refuse_without_effect(key, config.name, reason)
        if config.backend == "unsloth" and extensions_folder(source) is not None:
            raise InputError(
                "models.unsloth_with_extension_weights",
                config=config.name,
                extensions_manifest=EXTENSIONS_MANIFEST,
            )
        trains_lora = config.lora_config is not None or source.kind is SourceKind.LORA_FOLDER
        refuse_quantized_weights_that_train(config, trains_lora=trains_lora)

    def _build_embedded(self, source: ModelSource) -> ModelAndTokenizer:
        tokenizer = self._embedded_tokenizer()
        for change in self.changes:
            change.before_building(tokenizer)
        model = build_embedded_model(self.config.embedded, tokenizer, self.seed)
        check_length(language_model(model).config, self.max_length, self.config.name)
        if self.attention is not None:
            language_model(model).set_attn_implementation(self.attention)
        options = self._options(trains_all=self._is_full)
        model = model.to(device=self.device, dtype=options.dtype)
        model = self._changed(model, tokenizer, options, may_grow=True)
        return self._with_lora(model), tokenizer

    def _embedded_tokenizer(self) -> "PreTrainedTokenizerBase":
        if self.tokenizer_directory is not None:
            saved = ModelSource(SourceKind.FOLDER, str(self.tokenizer_directory))
            return load_tokenizer(saved, self._options(trains_all=self._is_full))
        if self.tokenizer_texts is None:
            raise InputError("models.embedded_without_texts")
        if self.known_tokenizer is not None:
            return read_tokenizer(self.known_tokenizer)
        return train_tokenizer(self.tokenizer_texts(), self.config.embedded.vocab_size)

    def _build_registered(self, source: ModelSource) -> ModelAndTokenizer:
        if source.kind is SourceKind.REGISTERED:
            model = MODELS[source.location].build()
        else:
            _, model = load_registered(source.folder)
        if self.gradient_checkpointing:
            checkpoint_gradients(model, self.checkpointing_mode)
        return model.to(self.device), None

    def _load_language_model(self, source: ModelSource) -> ModelAndTokenizer:
        source, base, options = self._read_source()
        if self.config.backend == "unsloth":
            prepare_backend(self.config)
        with offline_where_unreachable() if base.kind is SourceKind.HUB else nullcontext():
            return self._load_from(source, base, options)

    def _load_from(
        self, source: ModelSource, base: ModelSource, options: LoadOptions
    ) -> ModelAndTokenizer:
        for change in self.changes:
            change.check_base(base, options, self.config.name)
        values = load_config(base, options)
        check_length(values, self.max_length, self.config.name)
        if not self._makes_processor:
            self._check_layers(values, options, trains_on=source != base)
        if self.config.backend == "unsloth":
            return self._load_by_unsloth(source, options)
        tokenizer = self._tokenizer_of(source, base, options)
        size = getattr(values.get_text_config(), "vocab_size", None)
        if not self._makes_processor and isinstance(size, int):
            check_vocabulary(size, tokenizer, self.config.name)
        load = partial(layers_on_disk, config=values) if self.on_disk else load_causal_lm
        model = load(base, options=options)
        self._notes += getattr(model, NOTES, [])
        if options.quantization is not None and (names := expert_parameters(model)):
            experts = [model.get_parameter(name) for name in names]
            self._notes.append(note_on_experts(experts, options.quantization))
        may_grow = self._is_full and source == base
        model = self._changed(model, tokenizer, options, may_grow=may_grow)
        if source.kind is not SourceKind.LORA_FOLDER:
            return self._with_lora(model), tokenizer
        if self.gradient_checkpointing:
            checkpoint_gradients(model, self.checkpointing_mode)
        model = load_lora(source.folder, model)
        check_same_lora(
            model, self.config.lora_config, source.location, self._lora_within(inner_model(model))
        )
        return model, tokenizer

    def _check_layers(
        self, values: "PreTrainedConfig", options: LoadOptions, *, trains_on: bool
    ) -> None:
        """Raise if settings do not fit the model's layers, before its weights are read.

        Args:
            trains_on: the model is an existing LoRA that is trained further.
        """
        lora = None if trains_on else self.config.lora_config
        if lora is None and not self.changes:
            return
        layers = without_weights(values, options)
        for change in self.changes:
            change.check_layers(layers)
        if lora is not None and self.config.backend == "unsloth":
            check_unsloth_lora(layers, lora)
        elif lora is not None:
            peft_arguments(layers, lora, self._lora_within(layers))

    def _lora_within(self, model: torch.nn.Module) -> str | None:
        """Return the name of the part of the model that gets LoRA; None for the whole model."""
        return language_part(model) if self.sees and not self.config.train_vision else None

    def _freeze_vision(self, model: torch.nn.Module) -> None:
        """Freeze the vision encoder, but not the projector, for full fine-tuning."""
        tower = vision_tower(model)
        if tower is None:
            raise InputError(
                "models.vision_encoder_not_identified",
                name=self.config.name,
                class_name=type(model).__name__,
            )
        tower.requires_grad_(False)

    def _tokenizer_of(
        self, source: ModelSource, base: ModelSource, options: LoadOptions
    ) -> "PreTrainedTokenizerBase":
        if self._makes_processor:
            (change,) = (change for change in self.changes if change.makes_processor)
            change.check_base(base, options, self.config.name)
            self.processor = change.processor(base, options)
            tokenizer: PreTrainedTokenizerBase = self.processor.tokenizer
        elif self.sees:
            own = source.kind is not SourceKind.HUB and has_processor(source.folder)
            self.processor = load_processor(source if own else base, options)
            tokenizer = self.processor.tokenizer
        else:
            is_own = any((Path(source.location) / file).is_file() for file in TOKENIZER_FILES)
            tokenizer = load_tokenizer(source if is_own else base, options)
        return tokenizer

    def _load_by_unsloth(self, source: ModelSource, options: LoadOptions) -> ModelAndTokenizer:
        is_lora = source.kind is SourceKind.LORA_FOLDER
        model, tokenizer = load_unsloth(
            source,
            options,
            max_length=self.max_length,
            train_all=self._is_full and not is_lora,
            gradient_checkpointing=self.gradient_checkpointing,
        )
        ensure_special_tokens(tokenizer, self.config.name)
        may_grow = self._is_full and not is_lora
        model = self._changed(model, tokenizer, options, may_grow=may_grow)
        if is_lora:
            check_same_lora(model, self.config.lora_config, source.location)
        elif self.config.lora_config is not None:
            model = apply_unsloth_lora(
                model,
                self.config.lora_config,
                seed=self.seed,
                gradient_checkpointing=self.gradient_checkpointing,
            )
        return model, tokenizer

    def _changed(
        self,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase",
        options: LoadOptions,
        *,
        may_grow: bool,
    ) -> torch.nn.Module:
        """Return the model with the changes of features.

        Args:
            may_grow: whether the vocabulary may grow. False if the embedding weights are
                neither trained nor saved.
        """
        for change in self.changes:
            torch.manual_seed(self.seed)
            model = change.apply(model, tokenizer, options, may_grow=may_grow)
            self._notes += change.notes
        return model

    def _with_lora(self, model: torch.nn.Module) -> torch.nn.Module:
        if self.gradient_checkpointing:
            checkpoint_gradients(model, self.checkpointing_mode)
        if self.config.lora_config is None:
            if self.sees and not self.config.train_vision:
                self._freeze_vision(model)
            return model
        torch.manual_seed(self.seed)
        in_full = [name for change in self.changes for name in change.trains_in_full]
        return apply_lora(model, self.config.lora_config, self._lora_within(model), in_full)

    @property
    def _makes_processor(self) -> bool:
        return any(change.makes_processor for change in self.changes)

    @property
    def _is_full(self) -> bool:
        return self.config.lora_config is None

    def _options(self, *, trains_all: bool) -> LoadOptions:
        return LoadOptions(
            device=self.device,
            dtype=choose_dtype(self.config.dtype, trains_all=trains_all, device=self.device),
            attention=self.attention,
            quantization=self.config.quantization,
            trust_remote_code=self.config.trust_remote_code,
            revision=self.config.revision,
            sees=self.sees and not self._makes_processor,
            dequantizes=self.dequantizes,
        )

    def _identity(
        self, source: ModelSource, model: torch.nn.Module, hashed: Future[str | None]
    ) -> JsonObject:
        """Return hashes of the exact weights from which the run started."""
        identity = weights_begun_with(source, model, hashed)
        if source.kind in WITHOUT_TEXT:
            identity["registered_name"] = registered_name(self.config.name)
        for change in self.changes:
            identity |= change.facts()
        return identity


def hash_while_loading(source: ModelSource) -> Future[str | None]:
    """Start a thread that hashes the weights in a folder, or the weights of a LoRA's base model.

    Loading reads the same files at the same time, so the disk is read only once.

    Returns:
        A future of the SHA-256. None if the weights are not in a folder.
    """
    executor = ThreadPoolExecutor(1, "weights-hash")
    hashed = executor.submit(_weights_in_folder, source)
    executor.shutdown(wait=False)
    return hashed


def _weights_in_folder(source: ModelSource) -> str | None:
    if source.kind is SourceKind.LORA_FOLDER:
        source = base_of_lora(source.folder)
    if source.kind not in (SourceKind.FOLDER, SourceKind.REGISTERED_FOLDER):
        return None
    return weights_sha256(weight_files(source.folder))


def weights_begun_with(
    source: ModelSource, model: torch.nn.Module, hashed: Future[str | None]
) -> JsonObject:
    """Return the SHA-256 of the initial weights in a folder, or the commit of a Hub model.

    Args:
        hashed: the result of `hash_while_loading`.
    """
    if source.kind is SourceKind.LORA_FOLDER:
        source = base_of_lora(source.folder)
    is_of_hub = source.kind is SourceKind.HUB
    commit = getattr(model.config, "_commit_hash", None) if is_of_hub else None
    return {"base_sha256": hashed.result(), "revision": commit}


def load_saved(
    directory: Path, *, device: torch.device, model_config: ModelConfig | None = None
) -> LoadedModel:
    """Load a saved model for evaluation: a LoRA, full model, registered module or run directory.

    Args:
        model_config: how to load the model (dtype, quantization, attention). The name and LoRA
            settings in it are ignored, because the directory contains this information.

    Raises:
        ValueError: the directory does not contain a complete model.
    """
    config = (model_config or ModelConfig()).copy_with(name=str(directory), lora_config=None)
    loaded = ModelManager(config, device=device, seed=0).load()
    loaded.model.requires_grad_(False).eval()
    return loaded


@contextmanager
def own_random_state(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch while the context lasts, and restore its random state afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
