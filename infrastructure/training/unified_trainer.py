"""UnifiedTrainer: stack-wise training of layers, or of a model, that one has already.

The same loop, checkpoints and phases as everything else; what is named in a `TrainingConfig` does
here what it does in a run of `temper train`.
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
from infrastructure.training.core.precision import training_device
from infrastructure.training.core.state import TrainingState
from infrastructure.training.data.serving.example_order import epoch_order
from infrastructure.training.data.store.examples import TokenizedExample
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.model_adapters.layers_adapter import (
    IGNORED,
    LayersAdapter,
    LayersModel,
    LoaderSource,
    Loss,
    inputs_and_targets,
)
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.models.model_inputs import (
    PROBE_ERRORS,
    attention_implementation,
    inner_model,
    probing,
)
from infrastructure.training.models.packed_attention import use_plain_attention
from infrastructure.training.models.packing_check import token_embeddings
from infrastructure.training.models.weights_hash import frozen_hash
from infrastructure.training.setup.stack_outputs import (
    plan_lines,
    save_stacks_and_rack,
    stack_observers,
)
from infrastructure.training.stackwise.masking import MaskedObjective, objective_of
from infrastructure.training.strategies.stackwise_strategy import StackwiseStrategy

log = logging.getLogger(__name__)


class UnifiedTrainer:
    """Trains layers a unit at a time, or all at once, as a `TrainingConfig` says.

    The batches are the loader's: `batch_size` is not read. A learning rate of "auto" is that of
    weights that have been trained before. What belongs to a run (held-out data, files of metrics,
    backup, views) is `temper train`'s; hooks can do it here.

    Args:
        config: `mode`, `strategy` and what belongs to them; also epochs (of each phase), rates,
            seed. Where it names neither mode nor strategy, the strategy is progressive.
        output_dir: checkpoints go to `output_dir/checkpoints`; a training that was broken off goes
            on from them when `train_all_layers` is called again with the same layers and data. The
            plan goes to `stackwise.json`, finished stacks to `stacks/`, the whole to `rack/`, as
            `save_stacks` and `save_rack` say. None: nothing is saved.
        device: "auto", "cpu", "cuda" or "cuda:n".
        hooks: observers and extensions.

    Attributes:
        trainer: what did the last training; None before.

    Raises:
        ValueError: the configuration asks for what is done with a model when it is loaded, or for
            files without a folder.
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
            raise InputError("training.save_rack_needs_folder")
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
        """Train all of them, in the phases of the configuration.

        Args:
            dataloader: batches: a tensor (its own target), a pair of inputs and targets, or a
                mapping with `input_ids` and `labels`. A `DataLoader` is read in the order of this
                training's seed; any other iterable is read once, and kept.
            model_layers: a causal language model of transformers, whose layers are found by their
                structure; or a list of layers, each given what the one before gave. Quantization is
                of the linear layers inside them: one that is a linear layer itself stays as it is.
            embedding: of a list: from inputs to what the first layer is given; None: as they are.
            head: of a list: from what any layer gives to what the loss is given; None: as it is.
            loss: of a list: a mean over the batch; None: cross-entropy for targets that are whole
                numbers (-100: not counted), else the mean squared error.

        Returns:
            The state at the end; the layers have been trained in place. Which of their weights
            collect gradients, and whether they are in training mode, is afterwards as it was.

        Raises:
            ValueError: layers, data and loss do not fit together; says how.
            CheckpointError: `output_dir` holds another training.
        """
        device = training_device(self.device)
        adapter: ModelAdapter
        if isinstance(model_layers, torch.nn.Module) and hasattr(model_layers, "config"):
            if any(part is not None for part in (embedding, head, loss)):
                raise InputError("training.whole_model_and_parts")
            rows = TokenRows(dataloader, self.config.seed)
            check_fits(model_layers, rows)
            given, batch_size, longest = model_layers, rows.batch_size, rows.longest
            model_config, config = _sections(given, self.config, batch_size)
            adapter = GivenModelAdapter(given, rows, model_config, config, device)
        else:
            if self.config.time_step_masking:
                raise InputError("training.masking_needs_language_model")
            source = LoaderSource(dataloader, self.config.seed)
            inputs, targets = inputs_and_targets(source.first_batch())
            given = LayersModel(_layers_of(model_layers), embedding, head, inputs[:2])
            longest = DataConfig().max_length
            model_config, config = _sections(given, self.config, source.batch_size)
            if config.cache_activations is None:  # only examples of token ids are known again
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
        """From the beginning, or from where an earlier call was broken off."""
        if self.output_dir is not None:
            trainer.add_hooks(stack_observers(trainer, self.output_dir))
        if trainer.checkpoints is not None and trainer.checkpoints.checkpoints():
            trainer.restore(trainer.checkpoints.newest())
        if log.isEnabledFor(logging.INFO):
            for line in plan_lines(trainer):
                log.info("%s", line)
        state = trainer.train()
        if self.output_dir is not None and not state.is_interrupted:
            for problem in save_stacks_and_rack(trainer, self.output_dir):
                log.warning("%s", problem)
        return state


def refuse_settings_of_loading(config: TrainingConfig) -> None:
    """Raise ValueError for settings that Temper carries out where it loads a model."""
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
            raise InputError("training.setting_of_model_loading", setting=setting)


def _sections(
    model: torch.nn.Module, config: TrainingConfig, batch_size: int
) -> tuple[ModelConfig, TrainingConfig]:
    """The sections of a training of this model, with the loader's batches."""
    count = sum(parameter.numel() for parameter in model.parameters())
    name = f"{type(inner_model(model)).__name__} of {count:,} parameters"
    return ModelConfig(name=name), config.copy_with(batch_size=batch_size)


@contextmanager
def as_it_was(model: torch.nn.Module, trainer: EnhancedTrainer) -> Generator[None, None, None]:
    """Afterwards, also where the training was broken off, the model has the parts, modes, attention
    and trainable weights of before, and can be given to `train_all_layers` again."""
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = [(module, module.training) for module in model.modules()]
    attention = attention_implementation(model)
    try:
        yield
    finally:
        strategy = trainer.strategy
        if isinstance(strategy, StackwiseStrategy) and strategy.plan is not None:
            strategy.close(is_over=True)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained[name])
        for module, was_training in modes:
            module.training = was_training
        if attention_implementation(model) != attention:
            use_plain_attention(model)


class TokenRows:
    """The rows of a loader's batches, as examples of a language model. All of them are kept.

    Attributes:
        longest: tokens of the longest row.

    Raises:
        ValueError: the loader gives no rows of token ids, or nothing in them is to be learnt.
    """

    def __init__(self, loader: Iterable[object], seed: int) -> None:
        source = LoaderSource(loader, seed)
        batches = [rows_of(source.collate([item])) for item in source.items]
        self.examples = [row for rows in batches for row in rows]
        if not any(row.supervised.any() for row in self.examples):
            raise InputError("training.loader_without_trained_tokens")
        self.batch_size = source.batch_size * max(1, *map(len, batches))
        self.longest = max(2, *(len(row.input_ids) for row in self.examples))
        left_out = len(source.items) - source.num_examples  # by drop_last, of rows of one item each
        self.num_examples = len(self.examples) - left_out
        self.seed, self.shuffles = seed, source.shuffles

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row: (num_examples,), of those of the first epoch."""
        return np.array([len(row.input_ids) for row in self.examples[: self.num_examples]])

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.num_examples} {self.shuffles}".encode())
        for row in self.examples:
            digest.update(f"{len(row.input_ids)} ".encode())
            digest.update(row.input_ids.tobytes())
            digest.update(row.supervised.tobytes())
        return digest.hexdigest()

    def train_batches(
        self, epoch: int, start_example: int, batch_size: int
    ) -> Generator[Sequence[TokenizedExample], None, None]:
        count, end = len(self.examples), self.num_examples
        order = epoch_order(count, self.seed, epoch) if self.shuffles else range(count)
        for start in range(start_example, end, batch_size):
            yield [self.examples[int(i)] for i in order[start : min(start + batch_size, end)]]

    def evaluation_batches(
        self, batch_size: int
    ) -> Generator[Sequence[TokenizedExample], None, None]:
        yield from ()


class GivenModelAdapter(StandardModelAdapter):
    """A causal language model that one has already, with rows of token ids."""

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
        assert self.model is not None
        return _token_of(self.model, "pad_token_id") or 0

    def _masks(self, model: torch.nn.Module) -> MaskedObjective | None:
        """The last token of the vocabulary stands for a hidden one, unless the model names one.

        Raises:
            ValueError: that token is in the data.
        """
        if not self.training_config.time_step_masking:
            return None
        size = token_embeddings(model).num_embeddings
        mask = _token_of(model, "mask_token_id")
        if mask is None:
            mask = size - 1
            if any((row.input_ids == mask).any() for row in self._rows_given.examples):
                raise InputError("training.mask_token_in_data", mask=mask)
        special = [_token_of(model, name) for name in ("pad_token_id", "bos_token_id")]
        control = [token for token in special if token is not None]
        return objective_of(self.training_config, mask, size, control)

    def describe(self) -> JsonObject:
        """With a hash of what is in no checkpoint: the base of a LoRA."""
        assert self.model is not None
        facts = {"lora": hasattr(self.model, "peft_config")}
        return {**super().describe(), **facts, "base_sha256": frozen_hash(self.model)}

    def create_data_source(self, cache_config: CacheConfig, seed: int) -> DataSource:
        return self._rows_given


def _token_of(model: torch.nn.Module, name: str) -> int | None:
    """A token that the configuration of a model names, and the model has."""
    token = getattr(inner_model(model).config, name, None)
    is_there = isinstance(token, int) and 0 <= token < token_embeddings(model).num_embeddings
    return token if is_there else None


def check_fits(model: torch.nn.Module, rows: TokenRows) -> None:
    """Whether the model has an embedding for each token and position.

    Raises:
        ValueError: it has not; names token or length.
    """
    size = token_embeddings(model).num_embeddings
    for row in rows.examples:
        for token in (int(row.input_ids.min(initial=0)), int(row.input_ids.max(initial=0))):
            if not 0 <= token < size:
                raise InputError(
                    "training.loader_token_out_of_range", token=token, largest=size - 1
                )
    config = inner_model(model).config
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and rows.longest > positions:
        raise InputError("training.loader_row_too_long", longest=rows.longest, positions=positions)


def rows_of(batch: object) -> list[TokenizedExample]:
    """The rows of a batch: `input_ids` (B, L), and where given `labels` (the same ids, or -100: not
    learnt) and `attention_mask` (0: padding, of which nothing is left). Empty rows are left out.

    Raises:
        ValueError: they are something else; says what.
    """
    ids, targets = inputs_and_targets(batch)
    if ids.is_floating_point() or ids.ndim != 2:
        raise InputError("training.loader_without_token_ids", given=_described(ids))
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    for name, other in (("labels", targets), ("attention_mask", mask)):
        if other is not None and getattr(other, "shape", None) != ids.shape:
            what = _described(other) if isinstance(other, torch.Tensor) else type(other).__name__
            raise InputError(
                "training.batch_shapes_differ", name=name, shape=list(ids.shape), given=what
            )
    keep = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    learnt = keep & (targets != IGNORED)
    if (learnt & (targets != ids)).any():
        raise InputError("training.labels_not_aligned")
    return [
        TokenizedExample(row[kept].numpy().astype(np.int32), _supervised(marks[kept].numpy()))
        for row, marks, kept in zip(ids.cpu(), learnt.cpu(), keep.cpu(), strict=True)
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
            "training.invalid_model_layers",
            empty="an empty " if layers == [] else "",
            type=type(layers).__name__,
        )
    for number, layer in enumerate(layers, 1):
        if not isinstance(layer, torch.nn.Module):
            raise InputError(
                "training.layer_not_a_module", number=number, type=type(layer).__name__
            )
        if any(layer is other for other in layers[: number - 1]):
            raise InputError("training.layer_listed_twice", number=number)
    return list(layers)


def check_runs(
    adapter: LayersAdapter, model: LayersModel, inputs: torch.Tensor, targets: object
) -> None:
    """Run the layers on the first batch, and compute its loss.

    Raises:
        ValueError: they cannot be run on it, or do not give one shape; says what to give.
    """
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise InputError("training.layers_without_weights")
    with probing(model), torch.no_grad():
        hidden = _run(
            model.embedding, inputs.to(parameter.device), phrase("training.embedding_fails")
        )
        for number, layer in enumerate(model.layers, 1):
            what = phrase("training.layer_fails", number=number)
            output = _run(layer, hidden, what)
            if not isinstance(output, torch.Tensor) or output.shape != hidden.shape:
                made = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output)
                raise InputError(
                    "training.layer_changes_shape",
                    number=number,
                    returned=made,
                    shape=tuple(hidden.shape),
                )
            hidden = output
        _run(model.head, hidden, phrase("training.head_fails"))
    on_device = targets.to(parameter.device) if isinstance(targets, torch.Tensor) else targets
    batch = {"inputs": inputs.to(parameter.device), "targets": on_device, "num_items": 1}
    with probing(model), torch.no_grad():
        adapter.compute_loss(model, batch)


def _run(module: torch.nn.Module, given: torch.Tensor, what: str) -> torch.Tensor:
    try:
        return module(given)
    except (AssertionError, *PROBE_ERRORS) as error:
        raise InputError("training.layers_fail_on_batch", failure=what, error=error) from error
