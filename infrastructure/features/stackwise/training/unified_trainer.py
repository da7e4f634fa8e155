"""UnifiedTrainer: block-wise training of existing layers, or of an existing model.

It uses the same loop, checkpoints and phases as `temper train`, and every setting of
`TrainingConfig` has the same meaning.
"""

import hashlib
import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig as TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.stackwise.training.layers_adapter import (
    IGNORED,
    LayersAdapter,
    LayersModel,
    LoaderSource,
    Loss,
    inputs_and_targets,
)
from infrastructure.features.stackwise.training.masking import MaskedObjective, objective_of
from infrastructure.features.stackwise.training.strategy import StackwiseStrategy
from infrastructure.models.model_inputs import (
    PROBE_ERRORS,
    attention_implementation,
    inner_model,
    probing,
)
from infrastructure.models.packed_attention import use_plain_attention
from infrastructure.models.packing_check import token_embeddings
from infrastructure.models.weights_hash import frozen_hash
from infrastructure.training.core.precision import training_device
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter

log = logging.getLogger(__name__)


class UnifiedTrainer:
    """A trainer of existing layers, one group at a time or all at once; see `TrainingConfig`.

    The batches come from the given loader; `batch_size` is ignored. A learning rate of "auto" is
    the one for pretrained weights. Other features of `temper train` (held-out data, metrics files,
    backup, reports) are not included; hooks can provide them here.

    Args:
        config: `mode`, `strategy` and the settings that belong to them; also epochs (of each
            phase), learning rates and the seed. If neither mode nor strategy is set, the strategy
            is progressive.
        output_dir: checkpoints go to `output_dir/checkpoints`. An interrupted run resumes from them
            when `train_all_layers` is called again with the same layers and data. The plan
            goes to `stackwise.json`, finished stacks to `stacks/` and the whole model to `rack/`,
            as `save_stacks` and `save_rack` specify. None: nothing is saved.
        device: "auto", "cpu", "cuda" or "cuda:n".
        hooks: observers and extensions.

    Attributes:
        trainer: the trainer of the last call of `train_all_layers`; None before the first.

    Raises:
        ValueError: the configuration has a setting that takes effect when a model is loaded, or
            asks for files without a folder.
    """

    def __init__(
        self,
        config: TrainingConfig | None = None,
        *,
        output_dir: str | Path | None = None,
        device: str = "auto",
        hooks: Sequence[Hook] = (),
    ) -> None:
        config = config or TrainingConfig()
        refuse_settings_of_loading(config)
        if config.save_rack and output_dir is None:
            raise InputError("stackwise.save_rack_needs_folder")
        if config.strategy == "auto" and config.strategy_for(ModelConfig()) == "standard":
            config = config.copy_with(strategy="progressive")
        self.config = config
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.device, self.hooks = device, hooks
        self.trainer: EnhancedTrainer | None = None

    def train_all_layers(
        self,
        dataloader: Iterable[object],
        model_layers: torch.nn.Module | Sequence[torch.nn.Module],
        *,
        embedding: torch.nn.Module | None = None,
        head: torch.nn.Module | None = None,
        loss: Loss | None = None,
    ) -> TrainingState:
        """Train all layers, in the phases of the configuration.

        Args:
            dataloader: batches: a tensor (its own target), a pair of inputs and targets, or a
                mapping with `input_ids` and `labels`. The order of a `DataLoader` depends on the
                configured seed. Any other iterable is read once and kept.
            model_layers: a causal language model of transformers, whose layers are found by their
                structure; or a list of layers, each of which receives the output of the one before.
                Quantization applies to the linear layers inside them. A layer that is itself a
                linear layer is not quantized.
            embedding: for a list: maps inputs to the input of the first layer. None: identity.
            head: for a list: maps the output of any layer to the input of the loss. None: identity.
            loss: for a list: a mean over the batch. None: cross-entropy for integer targets (-100:
                ignored), otherwise the mean squared error.

        Returns:
            The state at the end. The layers are trained in place. Their `requires_grad` flags and
            training modes are restored afterwards.

        Raises:
            ValueError: layers, data and loss do not match. The message says how they differ.
            CheckpointError: `output_dir` belongs to another run.
        """
        device = training_device(self.device)
        adapter: ModelAdapter
        if isinstance(model_layers, torch.nn.Module) and hasattr(model_layers, "config"):
            if any(part is not None for part in (embedding, head, loss)):
                raise InputError("stackwise.whole_model_and_parts")
            rows = TokenRows(dataloader, self.config.seed)
            check_fits(model_layers, rows)
            given, batch_size, longest = model_layers, rows.batch_size, rows.longest
            model_config, config = _sections(given, self.config, batch_size)
            adapter = GivenModelAdapter(given, rows, model_config, config, device)
        else:
            if self.config.time_step_masking:
                raise InputError("stackwise.masking_needs_language_model")
            source = LoaderSource(dataloader, self.config.seed)
            inputs, targets = inputs_and_targets(source.first_batch())
            given = LayersModel(_layers_of(model_layers), embedding, head, inputs[:2])
            longest = DataConfig().max_length
            model_config, config = _sections(given, self.config, source.batch_size)
            if config.cache_activations is None:  # only token ids can be recognized later
                config = config.copy_with(cache_activations=False)
            adapter = LayersAdapter(given, source, loss, model_config, config, device)
            check_runs(adapter, given, inputs, targets)
        trainer = self.trainer = EnhancedTrainer(
            model_config,
            config,
            DataConfig(max_length=longest),
            adapter,
            device=self.device,
            checkpoint_directory=self.output_dir and self.output_dir / "checkpoints",
            hooks=self.hooks,
        )
        with as_it_was(given, trainer):
            return self._train(trainer)

    def _train(self, trainer: EnhancedTrainer) -> TrainingState:
        """Train from the beginning, or from the newest checkpoint of an interrupted call."""
        parts = trainer.strategy.run_parts(trainer)
        if self.output_dir is not None:
            trainer.add_hooks(parts.observers(self.output_dir))
        if trainer.checkpoints is not None and trainer.checkpoints.checkpoints():
            trainer.restore(trainer.checkpoints.newest())
        if log.isEnabledFor(logging.INFO):
            for line in parts.lines():
                log.info("%s", line)
        state = trainer.train()
        if self.output_dir is not None and not state.is_interrupted:
            for problem in parts.save(self.output_dir):
                log.warning("%s", problem)
        return state


def refuse_settings_of_loading(config: TrainingConfig) -> None:
    """Reject settings that take effect only when Temper loads a model, with a ValueError."""
    settings = {
        Setting("training.gradient_checkpointing"): config.gradient_checkpointing,
        Setting("training.compile_mode"): config.compile_mode is not None,
        Setting("training.memory_efficient_attention"): (
            config.memory_efficient_attention is not None
        ),
        Setting("training.mixed_precision", "fp8"): config.mixed_precision == "fp8",
    }
    for setting, is_set in settings.items():
        if is_set:
            raise InputError("stackwise.setting_of_model_loading", setting=setting)


def _sections(
    model: torch.nn.Module, config: TrainingConfig, batch_size: int
) -> tuple[ModelConfig, TrainingConfig]:
    """Return the model and training sections for this model with the loader's batches."""
    count = sum(parameter.numel() for parameter in model.parameters())
    name = f"{type(inner_model(model)).__name__} of {count:,} parameters"
    return ModelConfig(name=name), config.copy_with(batch_size=batch_size)


@contextmanager
def as_it_was(model: torch.nn.Module, trainer: EnhancedTrainer) -> Generator[None, None, None]:
    """Restore a model when the context ends, also after an interrupted run.

    The model gets back its parts, modes, attention and trainable weights, and can be passed to
    `train_all_layers` again.
    """
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = [(module, module.training) for module in model.modules()]
    attention = attention_implementation(model)
    try:
        yield
    finally:
        strategy = trainer.strategy
        if isinstance(strategy, StackwiseStrategy):
            strategy.close(is_over=True)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained[name])
        for module, was_training in modes:
            module.training = was_training
        if attention_implementation(model) != attention:
            use_plain_attention(model)


class TokenRows(LoaderSource):
    """The rows of a loader's batches as examples for a language model. All are kept in memory.

    Attributes:
        longest: number of tokens of the longest row.

    Raises:
        ValueError: the loader yields no rows of token ids, or none of their tokens is trained.
    """

    def __init__(self, loader: Iterable[object], seed: int) -> None:
        super().__init__(loader, seed)
        left_out = len(self.items) - self.num_examples  # by drop_last, if each item is one row
        batches = [rows_of(self.collate([item])) for item in self.items]
        self.items = [row for rows in batches for row in rows]
        if not any(row.supervised.any() for row in self.items):
            raise InputError("stackwise.loader_without_trained_tokens")
        self.batch_size *= max(1, *map(len, batches))
        self.longest = max(2, *(len(row.input_ids) for row in self.items))
        self.num_examples = len(self.items) - left_out

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each row of the first epoch: (num_examples,)."""
        return np.array([len(row.input_ids) for row in self.items[: self.num_examples]])

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.num_examples} {self.shuffles}".encode())
        for row in self.items:
            digest.update(f"{len(row.input_ids)} ".encode())
            digest.update(row.input_ids.tobytes())
            digest.update(row.supervised.tobytes())
        return digest.hexdigest()


class GivenModelAdapter(StandardModelAdapter):
    """The adapter for an existing causal language model that trains on rows of token ids."""

    def __init__(
        self,
        model: torch.nn.Module,
        rows: TokenRows,
        model_config: ModelConfig,
        training_config: TrainingConfig,
        device: torch.device,
    ) -> None:
        super().__init__(model_config, training_config, device)
        self._given, self._rows_given = model, rows

    def initialize_model(self) -> torch.nn.Module:
        self.model = self._given.to(self.device)
        with self.precision.autocast():
            self._probe(self.model)
        return self.model

    @property
    def pad_token_id(self) -> int:
        return _token_of(self._given, "pad_token_id") or 0

    def _masks(self, model: torch.nn.Module) -> MaskedObjective | None:
        """Create the masked objective, or return None if masking is off.

        The mask token is the token that the model's configuration names, or else the last token of
        the vocabulary.

        Raises:
            ValueError: the last token is needed as the mask token, but occurs in the data.
        """
        if not self.training_config.time_step_masking:
            return None
        size = token_embeddings(model).num_embeddings
        mask = _token_of(model, "mask_token_id")
        if mask is None:
            mask = size - 1
            if any((row.input_ids == mask).any() for row in self._rows_given.items):
                raise InputError("stackwise.mask_token_in_data", mask=mask)
        special = [_token_of(model, name) for name in ("pad_token_id", "bos_token_id")]
        control = [token for token in special if token is not None]
        return objective_of(self.training_config, mask, size, control)

    def describe(self) -> JsonObject:
        """Return the model's description with a hash of the weights that no checkpoint contains.

        Such weights are, for example, the base of a LoRA.
        """
        facts = {"lora": hasattr(self._given, "peft_config")}
        return {**super().describe(), **facts, "base_sha256": frozen_hash(self._given)}

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return self._rows_given


def _token_of(model: torch.nn.Module, name: str) -> int | None:
    """Return the token that the model's configuration names as `name`; None if it has no
    embedding.
    """
    token = getattr(inner_model(model).config, name, None)
    is_there = isinstance(token, int) and 0 <= token < token_embeddings(model).num_embeddings
    return token if is_there else None


def check_fits(model: torch.nn.Module, rows: TokenRows) -> None:
    """Check that the model has an embedding for each token and position.

    Raises:
        ValueError: an embedding is missing. The message names the token or the length.
    """
    size = token_embeddings(model).num_embeddings
    for row in rows.items:
        for token in (int(row.input_ids.min(initial=0)), int(row.input_ids.max(initial=0))):
            if not 0 <= token < size:
                raise InputError(
                    "stackwise.loader_token_out_of_range", token=token, largest=size - 1
                )
    config = inner_model(model).config
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and rows.longest > positions:
        raise InputError("stackwise.loader_row_too_long", longest=rows.longest, positions=positions)


def rows_of(batch: object) -> list[TokenizedExample]:
    """Split a batch into its rows, leaving out empty rows.

    The batch has `input_ids` (B, L), and optionally `labels` (the same ids, or -100: not trained)
    and `attention_mask` (0: padding, which is removed).

    Raises:
        ValueError: the batch has another form. The message says what is wrong.
    """
    ids, targets = inputs_and_targets(batch)
    if ids.is_floating_point() or ids.ndim != 2:
        raise InputError("stackwise.loader_without_token_ids", given=_described(ids))
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    for name, other in (("labels", targets), ("attention_mask", mask)):
        if other is not None and getattr(other, "shape", None) != ids.shape:
            what = _described(other) if isinstance(other, torch.Tensor) else type(other).__name__
            raise InputError(
                "stackwise.batch_shapes_differ", name=name, shape=list(ids.shape), given=what
            )
    keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    trained = keep & (targets != IGNORED)
    if (trained & (targets != ids)).any():
        raise InputError("stackwise.labels_not_aligned")
    return [
        TokenizedExample(row[kept].numpy().astype(np.int32), _supervised(marks[kept].numpy()))
        for row, marks, kept in zip(ids.cpu(), trained.cpu(), keep.cpu(), strict=True)
        if kept.any()
    ]


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _supervised(marks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    marks = marks.copy()
    marks[:1] = False  # nothing predicts the first token
    return marks


def _layers_of(layers: torch.nn.Module | Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    if isinstance(layers, torch.nn.ModuleList | torch.nn.Sequential):
        layers = list(layers)
    if isinstance(layers, torch.nn.Module) or not isinstance(layers, Sequence) or not layers:
        raise InputError(
            "stackwise.invalid_model_layers",
            empty="an empty " if layers == [] else "",
            type=type(layers).__name__,
        )
    for number, layer in enumerate(layers, 1):
        if not isinstance(layer, torch.nn.Module):
            raise InputError(
                "stackwise.layer_not_a_module", number=number, type=type(layer).__name__
            )
        if any(layer is other for other in layers[: number - 1]):
            raise InputError("stackwise.layer_listed_twice", number=number)
    return list(layers)


def check_runs(
    adapter: LayersAdapter, model: LayersModel, inputs: torch.Tensor, targets: object
) -> None:
    """Check that the layers and the loss work, by running them on the first batch.

    Raises:
        ValueError: the layers fail on this batch, or return different shapes. The message says what
            to pass.
    """
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise InputError("stackwise.layers_without_weights")
    with probing(model), torch.no_grad():
        hidden = _run(
            model.embedding, inputs.to(parameter.device), phrase("stackwise.embedding_fails")
        )
        for number, layer in enumerate(model.layers, 1):
            what = phrase("stackwise.layer_fails", number=number)
            output = _run(layer, hidden, what)
            if not isinstance(output, torch.Tensor) or output.shape != hidden.shape:
                made = (
                    tuple(output.shape)
                    if isinstance(output, torch.Tensor)
                    else type(output).__name__
                )
                raise InputError(
                    "stackwise.layer_changes_shape",
                    number=number,
                    returned=made,
                    shape=tuple(hidden.shape),
                )
            hidden = output
        _run(model.head, hidden, phrase("stackwise.head_fails"))
    on_device = targets.to(parameter.device) if isinstance(targets, torch.Tensor) else targets
    batch = {"inputs": inputs.to(parameter.device), "targets": on_device, "num_items": 1}
    with probing(model), torch.no_grad():
        adapter.compute_loss(model, batch)


def _run(module: torch.nn.Module, given: torch.Tensor, what: str) -> torch.Tensor:
    try:
        return module(given)
    except (AssertionError, *PROBE_ERRORS) as error:
        raise InputError("stackwise.layers_fail_on_batch", failure=what, error=error) from error
