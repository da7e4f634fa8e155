"""Construction of a TRL trainer from a configuration and its rows."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.auto import attention_for, trains_lora
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import OPTIONS, TOOLS, RowKind
from infrastructure.config.registries import METHODS
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.cache_folder import cache_directory
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.console_log import quiet_libraries
from infrastructure.core.errors import InputError
from infrastructure.core.hub import offline_where_unreachable
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.optional import PIP_LINES, require
from infrastructure.data.encoding.tokenization import answer_end_ids
from infrastructure.data.preparation.plan import read_chat_template, template_notes
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.models.answer_end import teach_trainer
from infrastructure.models.fitting import (
    check_length,
    check_same_lora,
    check_vocabulary,
    choose_dtype,
    describe,
)
from infrastructure.models.lora import (
    count_parameters,
    expert_parameters,
    no_words_on_ties,
    peft_arguments,
)
from infrastructure.models.model_manager import (
    check_saved,
    hash_while_loading,
    weights_begun_with,
)
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.quantization import note_on_experts, quantization_config
from infrastructure.models.router_logits import write_without_router_logits
from infrastructure.models.saved_model import (
    TOKENIZER_FILES,
    ModelSource,
    SourceKind,
    refuse_other_base,
)
from infrastructure.models.saving_check import prepare_saving
from infrastructure.models.source import find_source
from infrastructure.models.transformers_backend import (
    LoadOptions,
    base_of_lora,
    choose_attention,
    load_causal_lm,
    load_config,
    load_lora,
    load_tokenizer,
    without_weights,
)
from infrastructure.optimization.gpu_capability import AMPERE
from infrastructure.training.core.precision import Precision, choose_precision, training_device
from infrastructure.training.core.product_choice import ProductChoice, measured_choice
from infrastructure.training.methods.check import OPTIMIZERS, SCHEDULES
from infrastructure.training.methods.method_data import MethodData, TrlRow, read_data
from infrastructure.training.methods.method_table import TrlMethod, installed_method
from infrastructure.training.methods.rewards import given_values, reward_functions, try_rewards
from infrastructure.training.strategies.base_strategy import BETAS

if TYPE_CHECKING:
    from transformers import (
        PreTrainedConfig,
        PreTrainedTokenizerBase,
        TrainerCallback,
        TrainerControl,
        TrainerState,
    )

# Arguments that make several steps learn from one generation, which checkpoints do not contain.
REUSING = ("num_iterations", "steps_per_generation", "generation_batch_size")
NUM_TRIED = 64
# Columns that TRL reads itself. Rewards get all others.
READ_BY_TRL = frozenset({"prompt", "chosen", "rejected", "completion", TOOLS, OPTIONS})


@dataclass
class TrlTraining:
    """A checked TRL run before its model is loaded, with its rows, tokenizer and arguments.

    Args:
        folder: the run directory.
    """

    config: DeploymentConfig
    folder: Path

    def __post_init__(self) -> None:
        training = self.config.training
        self._hashed: Future[str | None] | None = None  # hash of the base's weights
        self._sources: dict[str, ModelSource] = {}
        self.device = training_device(self.config.device)
        if self.device.type == "cuda" and torch.cuda.device_count() > 1:
            raise InputError(
                "methods.several_gpus_visible",
                method=training.method,
                count=torch.cuda.device_count(),
            )
        self.installed: TrlMethod = installed_method(training.method)
        quiet_libraries()
        self.trainer_class, self.config_class = self.installed.classes()
        self.defaults: Defaults = defaults_of(self.config_class)
        self.source = self.find(self.config.model.name)
        self.options = self._options()
        self.tokenizer = self.load_tokenizer(self.source)
        self._check_model()
        self.data = self._read()
        has_rewards = self.installed.method.has_rewards
        self.rewards = reward_functions(training.rewards) if has_rewards else []
        if self.rewards:
            try_rewards(training.rewards, self.rewards, self.data.train[:NUM_TRIED])
        self.carried = carried_columns([*self.data.train, *self.data.held_out])
        self.arguments = self._checked_arguments()

    def lines(self) -> list[str]:
        """Return lines for the user to read before the model is loaded."""
        lines = [*self.data.lines(), *template_notes(self.config.data, self.tokenizer)]
        reused = [n for n in REUSING if self.config.training.method_settings.get(n, 1) != 1]
        if reused:
            lines.append(phrase("methods.steps_share_generations", argument=reused[0]))
        return lines

    def find(self, name: str) -> ModelSource:
        """Find a model, and check its files once.

        Raises:
            ValueError: it is not a language model, or a file is damaged.
        """
        if name in self._sources:
            return self._sources[name]
        source = find_source(name)
        if source.kind not in (SourceKind.FOLDER, SourceKind.HUB, SourceKind.LORA_FOLDER):
            raise InputError("methods.not_a_language_model", name=name, kind=source.kind.value)
        check_saved(source)
        self._sources[name] = source
        return source

    @property
    def _goes_on_with_lora(self) -> bool:
        """True if the run continues to train an existing LoRA."""
        return self.source.kind is SourceKind.LORA_FOLDER

    @property
    def _base(self) -> ModelSource:
        return base_of_lora(self.source.folder) if self._goes_on_with_lora else self.source

    def _options(self) -> LoadOptions:
        model, training = self.config.model, self.config.training
        trains_all = model.lora_config is None and not self._goes_on_with_lora
        return LoadOptions(
            self.device,
            choose_dtype(model.dtype, trains_all=trains_all, device=self.device),
            choose_attention(attention_for(model, training), None, self.device),
            model.quantization,
            model.trust_remote_code,
            model.revision,
        )

    def load_tokenizer(self, source: ModelSource) -> "PreTrainedTokenizerBase":
        with offline_where_unreachable():
            has_own = any((Path(source.location) / name).is_file() for name in TOKENIZER_FILES)
            is_lora = source.kind is SourceKind.LORA_FOLDER
            place = base_of_lora(source.folder) if is_lora and not has_own else source
            tokenizer = load_tokenizer(place, self.options)
        if self.config.data.chat_template is not None:
            tokenizer.chat_template = read_chat_template(self.config.data.chat_template)
        return tokenizer

    def _values_of(self, source: ModelSource) -> "PreTrainedConfig":
        """Load the configuration of a model, or of the base model of a LoRA."""
        is_lora = source.kind is SourceKind.LORA_FOLDER
        with offline_where_unreachable():
            return load_config(base_of_lora(source.folder) if is_lora else source, self.options)

    def embedding_rows(self, source: ModelSource, name: str) -> int:
        """Return the number of rows in the embedding of a model that uses this run's tokenizer.

        Raises:
            ValueError: the tokenizer has tokens beyond them.
        """
        values: Any = self._values_of(source).get_text_config()
        check_vocabulary(values.vocab_size, self.tokenizer, name)
        return int(values.vocab_size)

    def load_beside(self, source: ModelSource, revision: str | None) -> torch.nn.Module:
        """Load another model to the same device, in the same data type, unquantized."""
        options = replace(self.options, attention=None, quantization=None, revision=revision)
        return load_causal_lm(source, options)

    def _check_model(self) -> None:
        """Check the model's maximum length, vocabulary and LoRA, and what else the method needs.

        Raises:
            ValueError: the settings do not fit the model, or another model does not.
        """
        values = self._values_of(self.source)
        check_length(values, self.config.data.max_length, self.config.model.name)
        size = getattr(values.get_text_config(), "vocab_size", None)
        if isinstance(size, int):
            check_vocabulary(size, self.tokenizer, self.config.model.name)
        lora = self.config.model.lora_config
        if lora is not None and not self._goes_on_with_lora:
            layers = without_weights(values, self.options)
            self.lora_arguments = peft_arguments(layers, lora)
        self.more = self.installed.method.parts(self)

    def _read(self) -> MethodData:
        place = cache_directory(self.config.cache.directory)
        data = read_data(self.config, self.tokenizer, place / "quarantine.jsonl")
        needed = self._rows_of_a_step()
        if len(data.train) < needed:
            raise InputError(
                "methods.too_few_prompts",
                data=self.config.data.path,
                count=len(data.train),
                needed=needed,
            )
        return data

    def _rows_of_a_step(self) -> int:
        """Return the minimum number of rows for one step; TRL drops an incomplete step."""
        training = self.config.training
        answers = num_generations(self.config, self.defaults)
        if not self.installed.method.generates:
            return 1
        return max(1, int(training.batch_size) * training.gradient_accumulation // (answers or 1))

    def _checked_arguments(self) -> dict[str, object]:
        """Return the arguments of TRL's configuration after checking them.

        Raises:
            ValueError: the installed TRL lacks one of them, or the batch size is not a multiple of
                the answers per prompt.
        """
        arguments = arguments_of(self.config, self.device, self.defaults, self.folder)
        known = self.config_class.__dataclass_fields__
        if missing := sorted(set(arguments) - set(known)):
            raise InputError(
                "methods.trl_arguments_missing",
                method=self.config.training.method,
                config_class=self.config_class.__name__,
                names=", ".join(missing),
                command=PIP_LINES["trl"],
            )
        answers = num_generations(self.config, self.defaults)
        batch = int(self.config.training.batch_size) * self.config.training.gradient_accumulation
        if answers is not None and batch % answers:
            raise InputError("methods.answers_not_whole_groups", total=batch, group_size=answers)
        return arguments

    def make_trainer(self, *, is_new: bool, say: Callable[[str], None] = do_nothing) -> Any:
        """Load the model and create TRL's trainer for it.

        Args:
            is_new: the run is new, so the held-out rows are evaluated before the first step.
            say: shows a note. Some notes come only when the number of steps is known.

        Raises:
            ValueError: TRL rejects the model, the rows or the arguments.
        """
        transformers, datasets = require("transformers", "TRL"), require("datasets", "TRL")
        torch.manual_seed(self.config.training.seed)
        transformers.set_seed(self.config.training.seed)  # seeds LoRA's matrices or a new head
        self._hashed = hash_while_loading(self.source) if is_new else None
        by_name = None if self._goes_on_with_lora else self.loading()
        parts: dict[str, Any] = {
            "model": self._with_lora() if self._goes_on_with_lora else self.source.location,
            "args": self.config_class(
                **self.arguments,
                eval_on_start=is_new and bool(self.data.held_out),
                model_init_kwargs=by_name,
                **self.more[0],
            ),
            "train_dataset": self._dataset(datasets, self.data.train),
            "eval_dataset": self._dataset(datasets, self.data.held_out),
            "processing_class": self.tokenizer,
            "peft_config": self._lora(),
            **self.more[1],
        }
        if self.rewards:
            parts["reward_funcs"] = [given_values(one, self.carried) for one in self.rewards]
        trainer_class = self.installed.method.adapted(self, _cut_by_own_length(self.trainer_class))
        with _quiet(), offline_where_unreachable(), without_progress_bars():
            trainer = trainer_class(**parts)
        _draw_nothing(trainer)
        write_without_router_logits(trainer.model)
        for note in prepare_saving(trainer.model, self.end_token_ids):
            say(note)
        teach_trainer(trainer, self.end_token_ids)
        kind, names = self.options.quantization, expert_parameters(trainer.model)
        if kind is not None and names:
            there = trainer.model.named_parameters()
            experts = [p for name, p in there if name.replace(".base_layer", "") in names]
            say(f"note: {note_on_experts(experts, kind)}")
        if self.installed.method.rows is RowKind.PAIRS:
            weigh_pairs(trainer)
        _warm_up_half_at_most(trainer, self.config, say)
        holds_out = bool(self.data.held_out)
        trainer.add_callback(training_rhythm(self.config.training, holds_out=holds_out))
        return trainer

    @property
    def precision(self) -> Precision:
        """The precision in which the trainer computes."""
        name = "bf16" if self.arguments["bf16"] else "fp16" if self.arguments["fp16"] else "fp32"
        return Precision(name, self.device.type)

    @property
    def end_token_ids(self) -> list[int]:
        """The tokens that end an answer."""
        return answer_end_ids(self.tokenizer, self.config.data.max_length)

    def questions(self, most: int) -> list[GenerationPrompt]:
        """Return up to `most` prompts of held-out rows, or of training rows if there are none."""
        rows = (self.data.held_out or self.data.train)[:most]
        settings: dict[str, Any] = self.config.training.method_settings
        given = settings.get(OPTIONS) or {}  # apply to all rows
        return [self._question(row["prompt"], row.get(OPTIONS) or given) for row in rows]

    def _question(self, prompt: Any, options: dict[str, Any]) -> GenerationPrompt:
        if isinstance(prompt, str):
            text, ids = prompt, self.tokenizer(prompt)["input_ids"]
        else:
            write = partial(self.tokenizer.apply_chat_template, add_generation_prompt=True)
            text = str(write(prompt, tokenize=False, **options))
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return GenerationPrompt(text, [*ids], "", self.config.training.max_completion_length)

    def choose_by_product(self) -> ProductChoice | None:
        """Use fp32 for the run if this CPU multiplies matrices more slowly in bf16.

        Returns:
            The measurement. None if bf16 is not slower, or if the precision is already determined.
        """
        has_fp32 = self.options.dtype is torch.float32 and self.options.quantization is None
        choice = measured_choice() if self._precision_is_open and has_fp32 else None
        if choice is not None:
            self.arguments["bf16"] = False
        return choice

    def keep_precision(self, name: object) -> None:
        """Use the precision with which the resumed run began, unless the user sets one.

        A different precision that the user sets is rejected later, when all settings are compared.
        """
        if self._precision_is_open and name == "fp32":
            self.arguments["bf16"] = False

    @property
    def _precision_is_open(self) -> bool:
        """True if this is a CPU with bf16 instructions and the user has set no precision."""
        is_given = "bf16" in self.config.training.method_settings
        is_measured = self.config.training.mixed_precision is True and not is_given
        return is_measured and self.device.type == "cpu" and self.arguments["bf16"] is True

    def describe_model(self, model: torch.nn.Module) -> JsonObject:
        """Return the model's entry in run.json."""
        hashed = self._hashed or hash_while_loading(self.source)
        begun_with = weights_begun_with(self.source, model, hashed)
        return {"kind": str(self.source.kind), **describe(model, self.config.model), **begun_with}

    def described(self, trainer: Any) -> str:
        """Return a line for the user that describes the run about to start."""
        total, trained = count_parameters(trainer.model)
        args, title = trainer.args, self.installed.method.title
        return phrase(
            "methods.trl_run_described",
            method=title,
            version=version("trl"),
            total=total / 1000000.0,
            trained=trained / 1000000.0,
            learning_rate=args.learning_rate,
            precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            device=self.device,
        )

    def _dataset(self, datasets: Any, rows: list[TrlRow]) -> Any:
        """Convert rows to a `datasets` table that returns each row unchanged.

        A table with a fixed structure would add empty keys to messages, tool calls and options,
        which a chat template would render. Columns that only rewards read are stored as JSON text.

        Raises:
            ValueError: the installed datasets package has no such table.
        """
        if not rows:
            return None
        carried = [
            {n: json.dumps(v) if n in self.carried else v for n, v in row.items()} for row in rows
        ]
        if (table := _table(datasets, carried)) is not None:
            return table
        raise InputError("methods.datasets_too_old", version=version("datasets"))

    def loading(self) -> dict[str, object]:
        """Return the arguments with which transformers loads the model and the reference model."""
        options = self.options
        loading: dict[str, object] = {
            "dtype": str(options.dtype).removeprefix("torch."),
            "use_safetensors": True,
            "device_map": None if self.device.type == "cpu" else {"": 0},
        }
        if options.attention is not None:
            loading["attn_implementation"] = options.attention
        if options.quantization is not None:
            loading["quantization_config"] = quantization_config(
                options.quantization, options.dtype
            )
        if self.source.kind is SourceKind.HUB:
            loading["revision"] = options.revision or "main"
        if options.trust_remote_code:
            loading["trust_remote_code"] = True
        return loading

    def _with_lora(self) -> torch.nn.Module:
        """Load the base model with the existing LoRA that is trained further."""
        with offline_where_unreachable():
            base = load_causal_lm(self._base, self.options)
        if self._hashed is not None:  # a new run
            refuse_other_base(self.source.folder, self._hashed.result())
        model = load_lora(self.source.folder, base)
        check_same_lora(model, self.config.model.lora_config, self.source.location)
        return model

    def _lora(self) -> Any:
        lora = self.config.model.lora_config
        if lora is None or self._goes_on_with_lora:
            return None
        peft = require("peft", "model.lora_config")
        has_head = self.installed.method.head.endswith("SequenceClassification")
        return peft.LoraConfig(
            task_type="SEQ_CLS" if has_head else "CAUSAL_LM", **self.lora_arguments
        )


def _cut_by_own_length(trainer_class: Any) -> Any:
    """Return a subclass of the trainer that truncates each answer of a pair separately.

    TRL's ORPO trainer shortens both answers by the excess of the longer one, which may leave
    nothing of the shorter one.
    """
    if not hasattr(trainer_class, "tokenize_row") or "build_tokenized_answer" not in vars(
        trainer_class
    ):
        return trainer_class

    def tokenize_row(self: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        limit, self.max_length = self.max_length, sys.maxsize
        try:
            row = trainer_class.tokenize_row(self, *arguments, **named)
        finally:
            self.max_length = limit
        return {name: values[:limit] for name, values in row.items()}

    parts = {"tokenize_row": tokenize_row, "__module__": trainer_class.__module__}
    return type(trainer_class.__name__, (trainer_class,), parts)


def carried_columns(rows: list[TrlRow]) -> frozenset[str]:
    """Return the columns to store as JSON text, because a table would change their values.

    Only rewards read these columns. They contain lists, objects, or values of several types.
    """
    names = {name for row in rows for name in row} - READ_BY_TRL
    kinds = {name: {type(row[name]) for row in rows} for name in names}
    plain = [{kind} for kind in (str, int, float, bool)]
    return frozenset(name for name in names if kinds[name] not in plain)


def _spelt(row: TrlRow) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def _draw_nothing(trainer: Any) -> None:
    """Remove the Trainer's own progress output, because Temper shows its own."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)


def _warm_up_half_at_most(
    trainer: Any, config: DeploymentConfig, say: Callable[[str], None]
) -> None:
    """Limit warmup to half of the steps, as in Temper's own loop.

    Otherwise a short run would end before its learning rate has risen. The limit is set when the
    schedule is created, because the number of steps is known only then.
    """
    create = trainer.create_scheduler

    def create_scheduler(num_training_steps: int, *others: Any, **named: Any) -> Any:
        trainer.args.warmup_steps = config.training.warmup_within(num_training_steps)
        for note in config.short_warmup(num_training_steps):
            say(f"note: {note}")
        return create(num_training_steps, *others, **named)

    trainer.create_scheduler = create_scheduler


def _table(datasets: Any, rows: list[TrlRow]) -> Any:
    """Return rows as a `datasets` table that returns them unchanged; None if `datasets` has no such
    table.
    """
    spelt = [_spelt(row) for row in rows]
    for more in ({}, {"on_mixed_types": "use_json"}):
        try:
            table = datasets.Dataset.from_list(rows, **more)
        except (TypeError, ValueError, ArithmeticError):  # pyarrow's errors are subclasses
            continue
        if all(_spelt(row) == one for row, one in zip(table, spelt, strict=True)):
            return table
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars of `datasets` and FutureWarnings while the context lasts."""
    datasets = require("datasets", "TRL")
    was_on = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            with no_words_on_ties():
                yield
    finally:
        if was_on:
            datasets.enable_progress_bars()


def weigh_pairs(trainer: Any) -> None:
    """Make a TRL trainer for pairs of answers report its evaluation metrics as means over all
    pairs.

    TRL collects one number per batch and logs the mean of these numbers. With 14 pairs in batches
    of 8 and 6, a pair in the second batch weighs more, and the accuracy may be 75%, which is not a
    whole number of pairs. This function weights each number by the number of pairs in its batch.
    Numbers that TRL does not collect once per batch stay unchanged.
    """
    name = "_metrics" if hasattr(trainer, "_metrics") else "_stored_metrics"  # the latter in ORPO
    collected = getattr(trainer, name)
    predict, log, sizes = trainer.prediction_step, trainer.log, []

    def prediction_step(model: Any, inputs: Mapping[str, Any], *others: Any, **named: Any) -> Any:
        # the ids are of both answers of each pair, or of the chosen one: in proportion to the pairs
        sizes.append(next(len(ids) for name, ids in inputs.items() if name.endswith("input_ids")))
        return predict(model, inputs, *others, **named)

    def log_weighed(*others: Any, **named: Any) -> None:
        for name, values in collected["eval"].items():
            if len(values) == len(sizes):
                total = sum(size * value for size, value in zip(sizes, values, strict=True))
                collected["eval"][name] = [total / sum(sizes)]
        sizes.clear()
        log(*others, **named)

    trainer.prediction_step, trainer.log = prediction_step, log_weighed


# A callback that makes a Trainer evaluate and save at Temper's intervals.
#
# It must be added before `TemperCallback`, which saves the requested checkpoints.


def training_rhythm(training: TrainingConfig, *, holds_out: bool) -> "TrainerCallback":
    """Create the callback that requests evaluations and saves.

    Args:
        holds_out: True if there are rows to evaluate on.
    """
    from transformers import TrainerCallback

    class TrainingRhythm(TrainerCallback):
        """A callback that requests evaluations and saves at Temper's intervals."""

        def on_step_end(
            self,
            args: object,
            state: "TrainerState",
            control: "TrainerControl",
            **parts: object,
        ) -> None:
            """Request evaluations and saves that are due by steps, and an evaluation at the end."""
            step, is_last = state.global_step, state.global_step >= state.max_steps
            if holds_out and (is_last or _is_due(step, training.validation_frequency)):
                control.should_evaluate = True
            if _is_due(step, training.checkpoint_frequency):
                control.should_save = True

        def on_epoch_end(
            self,
            args: object,
            state: "TrainerState",
            control: "TrainerControl",
            **parts: object,
        ) -> None:
            """Request evaluations and saves that are due by epochs."""
            if state.global_step >= state.max_steps:
                return  # the last step has handled the end
            epoch = round(state.epoch or 0)
            if holds_out and _is_due(epoch, training.validation_interval):
                control.should_evaluate = True
            if _is_due(epoch, training.checkpoint_interval):
                control.should_save = True

    return TrainingRhythm()


def _is_due(count: int, every: int | None) -> bool:
    return every is not None and count > 0 and count % every == 0


# Translation of Temper's configuration to TRL's arguments.
#
# `check.SETTINGS` lists the settings that become arguments. A test checks that this module
# and that table agree.

LORA_FACTOR = 10  # times TRL's default learning rate, as TRL's documentation advises for adapters


@dataclass(frozen=True)
class Defaults:
    """The default values of TRL's configuration, which `auto` settings use.

    Attributes:
        learning_rate: for full fine-tuning.
    """

    learning_rate: float
    num_epochs: float
    num_generations: int | None


def defaults_of(config_class: type) -> Defaults:
    """Return the defaults of one of TRL's configuration classes without creating an instance."""
    fields: Mapping[str, object] = {
        name: field.default
        for name, field in config_class.__dataclass_fields__.items()  # type: ignore[attr-defined]
    }
    generations = fields.get("num_generations")
    return Defaults(
        float(str(fields["learning_rate"])),
        float(str(fields["num_train_epochs"])),
        generations if isinstance(generations, int) else None,
    )


def arguments_of(
    config: DeploymentConfig, device: torch.device, defaults: Defaults, folder: Path
) -> dict[str, object]:
    """Return all arguments of TRL's configuration, by name.

    Args:
        folder: the run directory.

    Raises:
        ValueError: the device does not support the configured precision.
    """
    training, method = config.training, METHODS.get(config.training.method)
    precision = choose_precision(training.mixed_precision, device).name
    batch_size = int(training.batch_size)
    generations = num_generations(config, defaults)
    arguments: dict[str, object] = {
        # Temper's checkpoints replace TRL's, and `TrainingRhythm` decides when to evaluate.
        "output_dir": str(folder),
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": training.log_frequency,
        "report_to": [],
        "disable_tqdm": False,
        "seed": training.seed,
        "data_seed": training.seed,
        "use_cpu": device.type == "cpu",
        "learning_rate": learning_rate(config, defaults),
        "lr_scheduler_type": SCHEDULES[training.scheduler_type],
        "warmup_steps": training.warmup_steps,
        "num_train_epochs": num_epochs(config, defaults),
        "max_steps": -1 if training.max_steps is None else training.max_steps,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": _whole_groups(batch_size, generations),
        "gradient_accumulation_steps": training.gradient_accumulation,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm or 0.0,
        "optim": OPTIMIZERS[training.optimizer],
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "tf32": _tf32(config, device),
        "gradient_checkpointing": training.gradient_checkpointing,
        "dataloader_pin_memory": config.data.pin_memory,
    }
    if training.beta != "auto":
        arguments["beta"] = training.beta
    if method.generates:
        arguments["max_completion_length"] = training.max_completion_length
        arguments["temperature"] = training.temperature
    else:
        arguments["max_length"] = config.data.max_length
    if generations is not None:
        arguments["num_generations"] = generations
    return arguments | training.method_settings


def learning_rate(config: DeploymentConfig, defaults: Defaults) -> float:
    """Return the peak learning rate: as configured, or TRL's default, which is multiplied by ten
    for LoRA.
    """
    if config.training.learning_rate != "auto":
        return config.training.learning_rate
    factor = LORA_FACTOR if trains_lora(config.model) else 1
    return defaults.learning_rate * factor


def num_epochs(config: DeploymentConfig, defaults: Defaults) -> float:
    """Return the number of epochs: as configured, or TRL's default."""
    given = config.training.num_epochs
    return defaults.num_epochs if given == "auto" else float(given)


def num_generations(config: DeploymentConfig, defaults: Defaults) -> int | None:
    """Return the number of answers per prompt: as configured, or TRL's default.

    None if the method has no such argument.
    """
    given = config.training.num_generations
    return defaults.num_generations if given == "auto" else given


def _whole_groups(batch_size: int, generations: int | None) -> int:
    """Round a batch size down so that a batch contains all answers to each of its prompts."""
    if generations is None:
        return batch_size
    return max(1, batch_size // generations) * generations


def _tf32(config: DeploymentConfig, device: torch.device) -> bool | None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE:
        return None
    return config.enable_gpu_optimization
