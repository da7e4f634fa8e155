"""The export of a checkpoint as a standard model folder, without a GPU or the training data."""

import gc
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import SFT
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.checksums import write_sums
from infrastructure.core.console import ShowLine
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.features import all_of
from infrastructure.core.files import (
    refuse_what_is_there,
    whole_directory,
    write_json,
)
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.encoding.chat_format import PlainFormat, TemplateFormat, special_tokens
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.tokenization import ConversationEncoder, answer_end_ids
from infrastructure.data.readers.rows import Turn
from infrastructure.deployment.export_request import (
    EXPORT_FILE,
    ExportRequest,
    Reading,
    check_possible,
    in_its_words,
    refuse_scores,
    rounding_of,
)
from infrastructure.deployment.resuming import commit_of_base, configuration_of
from infrastructure.evaluation.plain_reading import (
    HALF,
    HALF_TOLERANCE,
    NUM_QUESTIONS,
    PLAIN_TOLERANCE,
    QUESTIONS,
    Expected,
    OtherAnswersError,
    Trained,
    about_picture,
    distance,
    fixed_picture,
    fixed_questions,
)
from infrastructure.models.added_modules import added_modules, attach_described
from infrastructure.models.fitting import DTYPES
from infrastructure.models.lora import merge_lora
from infrastructure.models.model_change import ModelChange, changes_of
from infrastructure.models.model_manager import LoadedModel, ModelManager
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.quantization import layers_not_in_blocks, quantization_config
from infrastructure.models.saved_model import read_json
from infrastructure.models.saving import save_model, save_tokenizer, write_model
from infrastructure.models.saving_check import prepare_saving
from infrastructure.models.trainable_state import load_trainable_state
from infrastructure.run.checkpoint_paths import by_step, step_of, verify
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.run.history import history_of, public_history
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
)
from infrastructure.training.hf_bridge.trainer_run import without_reference
from infrastructure.training.resume.fingerprint import base_facts
from infrastructure.training.strategies import get_training_strategy, has_forms
from infrastructure.training.strategies.base_strategy import NOT_ENTERED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The comparison of an exported model, loaded as users load it, with the trained model.
#
# Both models get three questions, formatted as in training. The token ids of the questions and the
# logits of the models are compared. The distance is the norm of the difference between mean-
# centered logits, divided by their norm. An unrelated model has a distance of about 1.4. Weights
# with fewer bits have a higher tolerance.

MAX_TOKENS = 64
ROUNDED = {
    8: "deployment.export_in_8_bits_answers_differ",
    4: "deployment.export_in_4_bits_answers_differ",
}
TOLERANCES = {16: HALF_TOLERANCE, 8: 0.2, 4: 0.6}

LogitsOf = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Reference:
    """The outputs of the trained model.

    Attributes:
        prompts: the token ids of each prompt, of shape (1, tokens).
        logits: the logits for each prompt, of shape (tokens, vocabulary), fp32.
        tolerance: the tolerated distance for the same weights in the same format.
        expected: the answers of the model, or None if it generates no text.
    """

    prompts: list[torch.Tensor]
    logits: list[torch.Tensor]
    tolerance: float
    expected: Expected | None = None

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase | None",
        pictures: PictureTokens | None = None,
        end_ids: Sequence[int] = (),
    ) -> "Reference":
        """Compute the reference outputs of a model. The model stays in evaluation mode.

        Args:
            end_ids: the tokens that end an answer.
        """
        model.eval()
        prompts = prompts_of(model, tokenizer, pictures)
        weights = next(p for p in model.parameters() if p.is_floating_point())
        tolerance = TOLERANCES[16] if weights.dtype in HALF else PLAIN_TOLERANCE
        expected = None
        # Plain transformers does not use the weights that extensions add.
        is_plain = hasattr(model, "generate") and not added_modules(model)
        if tokenizer is not None and is_plain and end_ids:
            questions = fixed_questions(tokenizer, pictures=pictures)
            trained = Trained(model, tokenizer, questions, end_ids, pictures=pictures)
            expected = Expected.of(trained)
        logits = [logits_of(model, pictures)(ids) for ids in prompts]
        return cls(prompts, logits, tolerance, expected)


# Whether the export encodes prompts as the trained model does; None: it has no tokenizer.
PROMPTS = {
    True: "deployment.export_prompts_same",
    False: "deployment.export_prompts_other",
    None: "deployment.export_without_tokenizer",
}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing an export with the trained model.

    Attributes:
        by: the library that loaded the export.
        distance: the largest distance over the questions.
        same_choice: the share of positions at which both models choose the same next token.
        same_answers: how many of the `NUM_QUESTIONS` answers of plain transformers are the same
            token for token, including their ends, or None if not available.
        same_prompt: whether the export's tokenizer encodes the questions in the same way, or None
            if the format contains no tokenizer.
    """

    by: str
    distance: float
    same_choice: float
    same_prompt: bool | None = None
    same_answers: int | None = None

    def facts(self) -> dict[str, object]:
        """Return the result as entries of the file that is saved with the exported model."""
        return {
            "read_by": self.by,
            "logits_distance": float(f"{self.distance:.2g}"),
            "same_choice": round(self.same_choice, 4),
            "same_prompt": self.same_prompt,
            "same_answers": self.same_answers,
        }

    def words(self) -> str:
        """Return the result as text for the user."""
        same = ""
        if self.same_answers is not None:
            same = phrase(
                "deployment.export_same_answers",
                num_same=self.same_answers,
                num_answers=NUM_QUESTIONS,
            )
        return phrase(
            "deployment.export_read_back",
            reader=self.by,
            distance=self.distance,
            percent=100 * self.same_choice,
            answers=same,
            prompts=phrase(PROMPTS[self.same_prompt]),
        )


@dataclass
class Comparer:
    """A function that compares exports with one reference.

    Attributes:
        bits: the bits of each exported weight, or None for the trained format.
        target: the folder to name in error messages; None for the compared folder.

    Raises:
        CheckpointError: if an export is too far from the reference, or encodes prompts differently.
    """

    reference: Reference
    bits: int | None
    target: Path | None = None
    made: list[Comparison] = field(default_factory=list)

    def __call__(
        self,
        by: str,
        logits: LogitsOf,
        prompts: Sequence[torch.Tensor] | None = None,
        folder: Path | None = None,
    ) -> Comparison:
        """Compare the logits of an export with those of the reference model.

        Args:
            by: the library that loads the export.
            logits: computes the export's logits from token ids.
            prompts: the questions, encoded by the export's own tokenizer, or None if it has none.
            folder: the folder from which plain transformers loads the model and answers, or None if
                it does not support the format.

        Raises:
            CheckpointError: if the outputs differ by more than the tolerance.
        """
        distances, choices = [], []
        for ids, expected in zip(self.reference.prompts, self.reference.logits, strict=True):
            actual = logits(ids)
            width = min(actual.shape[-1], expected.shape[-1])  # a vocabulary may be padded
            actual, expected = actual[:, :width].float(), expected[:, :width]
            distances.append(distance(actual, expected))
            choices.append((actual.argmax(-1) == expected.argmax(-1)).float())
        same_prompt = None
        if prompts is not None:
            pairs = zip(prompts, self.reference.prompts, strict=True)
            same_prompt = all(torch.equal(ours, theirs) for ours, theirs in pairs)
        compared = Comparison(by, max(distances), float(torch.cat(choices).mean()), same_prompt)
        tolerance = max(self.reference.tolerance, TOLERANCES.get(self.bits or 0, 0.0))
        if not compared.distance <= tolerance:
            raise CheckpointError(
                "deployment.export_differs_from_model",
                comparison=compared.words(),
                tolerance=tolerance,
            )
        if same_prompt is False:
            raise CheckpointError("deployment.export_prompts_differ", reader=by)
        if folder is not None and self.reference.expected is not None:
            try:
                same = self.reference.expected.compare(folder, tolerance)
            except OtherAnswersError as error:
                raise self._other_answers(error, folder, compared.distance, tolerance) from error
            compared = replace(compared, same_answers=same)
        self.made.append(compared)
        return compared

    def _other_answers(
        self, error: OtherAnswersError, folder: Path, distance: float, tolerance: float
    ) -> CheckpointError:
        """Return the error for an export whose answers differ. If weights were rounded, the error
        says so.

        The error names `target`, because `folder` is temporary.
        """
        if self.bits not in ROUNDED:
            return OtherAnswersError(self.target or folder, error.difference)
        return CheckpointError(
            ROUNDED[self.bits],
            folder=self.target or folder,
            difference=error.difference,
            distance=distance,
            tolerance=tolerance,
        )


def prompts_of(
    model: Any, tokenizer: "PreTrainedTokenizerBase | None", pictures: PictureTokens | None = None
) -> list[torch.Tensor]:
    """Return the test questions of a comparison as token ids, each of shape (1, tokens).

    Without a tokenizer, these are arbitrary tokens. A vision-language model also gets the first
    question with an image.
    """
    if tokenizer is None:
        return [torch.arange(8).unsqueeze(0)]
    encoder = ConversationEncoder(tokenizer, max_length=MAX_TOKENS, pictures=pictures)
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", MAX_TOKENS)
    longest = min(MAX_TOKENS, int(positions or MAX_TOKENS))
    written = (encoder.prompt_ids([Turn("user", question)]) for question in QUESTIONS)
    shown = []
    if pictures is not None:
        turn = about_picture(QUESTIONS[0])
        shown = [torch.tensor([encoder.prompt_ids([turn], images=[fixed_picture()])])]
    return [*(torch.tensor([ids[:longest]]) for ids in written), *shown]


def logits_of(model: Any, pictures: PictureTokens | None = None) -> LogitsOf:
    """Return a function that computes the logits of a language model or vision-language model."""

    @torch.no_grad()
    def logits(ids: torch.Tensor) -> torch.Tensor:
        device = next(model.parameters()).device
        given: dict[str, torch.Tensor] = {}
        if pictures is not None and pictures.mark_id in ids:
            given = pictures.pixels_of([fixed_picture()]) | pictures.kinds(ids)
            given = {name: value.to(device) for name, value in given.items()}
            if (pixels := given.get("pixel_values")) is not None:
                given["pixel_values"] = pixels.to(model.dtype)
        output: torch.Tensor = model(input_ids=ids.to(device), use_cache=False, **given).logits[0]
        return output.float().cpu()

    return logits


WHOLE = ".whole"  # a temporary model folder, the input of exporters that need one


@dataclass
class Work:
    """An export in progress, with its model, tokenizer, request and notes.

    Attributes:
        model: the model on the CPU, merged if the request says so.
        ends: the tokens that end answers.
        notes: notes for the user.
        rounding: the change to the model that rounded its weights in training, or None if the
            weights are exported as stored.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase | None"
    request: ExportRequest
    compare: Comparer
    ends: Sequence[str]
    notes: list[str]
    registered_name: str | None = None
    processor: Any = None
    rounding: ModelChange | None = None

    def write(self, folder: Path) -> None:
        """Write the files of the requested format, and compare them with the trained model.

        Raises:
            ValueError: if the model cannot be written in this format, or the written files cannot
                be read; the error quotes the exporter's message.
            CheckpointError: if the written model differs from the trained one.
        """
        for reading in self.request.format.write(self, folder):
            self.compare(*reading)
        if not self.compare.made and self.registered_name is None:
            raise InputError("deployment.export_not_read_back", format=self.request.form)

    def write_transformers_folder(self, folder: Path) -> Iterator[Reading]:
        """Write the model as a transformers or PEFT folder, rounded if this was requested."""
        if self.rounding is not None:  # the weights with which training computed
            with self.whole_model(folder) as whole:
                self.rounding.write_rounded(whole, folder, self.tokenizer)
        elif self.request.is_small:
            yield self._write_small(folder)
            return
        else:
            write_model(
                self.model,
                self.tokenizer,
                folder,
                registered_name=self.registered_name,
                processor=self.processor,
            )
        if self.registered_name is None:
            yield self._as_loaded(folder)

    def _as_loaded(self, folder: Path) -> Reading:
        """Load the exported model with transformers or PEFT, and return it for the comparison."""
        config = ModelConfig(name=str(folder), backend="transformers")
        manager = ModelManager(config, device=torch.device("cpu"), seed=0)
        manager.sees = self.processor is not None
        loaded = manager.load()
        loaded.model.eval()
        by = "PEFT" if hasattr(loaded.model, "peft_config") else "transformers"
        seeing = PictureTokens(manager.processor, str(folder)) if manager.sees else None
        prompts = (
            None if loaded.tokenizer is None else prompts_of(loaded.model, loaded.tokenizer, seeing)
        )
        return Reading(by, logits_of(loaded.model, seeing), prompts, folder)

    def _write_small(self, folder: Path) -> Reading:
        """Write the model in 8 or 4 bits with bitsandbytes."""
        kind = type(self.model)
        odd = layers_not_in_blocks(self.model) if self.request.bits == 4 else []
        skipped = [*odd, *_output_layer(self.model)] if odd else None  # None: bitsandbytes' default
        with self.whole_model(folder, torch.bfloat16) as whole:
            small: Any = quantization_config(f"{self.request.bits}bit", torch.bfloat16)
            if odd:
                small.llm_int8_skip_modules = skipped
                self.notes.append(
                    phrase("deployment.export_layers_kept_at_16_bits", count=len(odd), layer=odd[0])
                )
            with in_its_words("bitsandbytes"), without_progress_bars():
                model = kind.from_pretrained(whole, quantization_config=small, device_map="cpu")
                model.save_pretrained(folder)
            del model
        if self.tokenizer is not None:
            save_tokenizer(self.tokenizer, folder)
        with without_progress_bars():
            again = kind.from_pretrained(folder, device_map="cpu").eval()
        prompts = self.prompts_in(folder, again)
        return Reading("transformers and bitsandbytes", logits_of(again), prompts, folder)

    def as_function(self) -> "Logits":
        """Return the model as a function from tokens to logits."""
        return Logits(self.model)

    def logits_of(self, model: Any) -> Any:
        """Return a function that computes the logits of `model`, for `Reading.logits`."""
        return logits_of(model.eval())

    def save_beside(self, folder: Path) -> None:
        """Save the tokenizer and the model's configuration to the folder."""
        self.model.config.save_pretrained(folder)
        if self.tokenizer is not None:
            save_tokenizer(self.tokenizer, folder)

    def prompts_in(self, folder: Path, model: Any = None) -> list[torch.Tensor] | None:
        """Return the test questions, encoded by the tokenizer in `folder`; None if it contains no
        tokenizer.

        Args:
            model: the model that gets the questions, if `self.model` was freed.
        """
        if not (folder / "tokenizer_config.json").is_file():
            return None
        transformers: Any = require("transformers", "deployment.reading_tokenizer")
        return prompts_of(model or self.model, transformers.AutoTokenizer.from_pretrained(folder))

    def as_text(self, turns: Sequence[Turn]) -> str:
        """Return messages formatted as in training, without the initial BOS token."""
        tokenizer = self.tokenizer
        assert tokenizer is not None
        written = TemplateFormat(tokenizer) if tokenizer.chat_template else PlainFormat(tokenizer)
        return str(written.write_prompt(turns).text).removeprefix(tokenizer.bos_token or "")

    def questions(self) -> list[str]:
        """Return the test questions as formatted prompts, without the initial BOS token."""
        return [self.as_text([Turn("user", question)]) for question in QUESTIONS]

    @contextmanager
    def whole_model(self, folder: Path, dtype: torch.dtype | None = None) -> Iterator[Path]:
        """Write the model to a temporary transformers folder, free its memory, and yield the
        folder's path.

        Args:
            dtype: the data type of the written weights; by default, the model's own.
        """
        whole = folder / WHOLE
        whole.mkdir()
        try:
            model = self.model if dtype is None else self.model.to(dtype)
            write_model(model, self.tokenizer, whole)
            del model
            self.model = None
            gc.collect()
            yield whole
        finally:
            shutil.rmtree(whole, ignore_errors=True)


class Logits(torch.nn.Module):
    """A module that maps token ids to the logits of a language model, without a KV cache.

    Shapes: (batch, length) of int64 → (batch, length, vocabulary).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output: Any = self.model(input_ids=input_ids, use_cache=False)
        logits: torch.Tensor = output.logits
        return logits


def _output_layer(model: Any) -> list[str]:
    """Return a list with the name of the output layer, which stays unquantized.

    bitsandbytes skips this layer only as long as no other modules are listed.
    """
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if module is head]


TEMPLATE_FILE = "chat_template.jinja"  # of the tokenizer that the run used
MORE_TEMPLATES = "additional_chat_templates"  # such as tool_use.jinja, in the same folder


def export_model(
    run: RunDirectory,
    checkpoint: Path | None,
    folder: Path,
    request: ExportRequest,
    report: ShowLine = do_nothing,
) -> dict[str, Any]:
    """Export a checkpoint in the requested format and precision, and verify the exported model.

    The folder appears only after the exported model was loaded and matches the trained one, so a
    killed process leaves nothing that looks like a finished export.

    Args:
        report: a function that shows a line during the export.

    Returns:
        A dictionary with run, step, checkpoint, folder, the request, `compared`, `history`, `lines`
        and `notes`.

    Raises:
        ValueError: if `folder` is not empty, or the run, the model or this machine does not support
            the request.
        StorageError: if the disk has too little space; nothing was written.
        CheckpointError: if the checkpoint is damaged, or the export differs from the model.
    """
    refuse_what_is_there(folder)
    check_possible(run, folder, request)
    is_rounded = bool(rounding_of(run, request))
    report(phrase("deployment.export_loading_model"))
    is_merged = request.is_merged and bool(run.read_model().get("lora"))
    trained = _load(run, checkpoint, is_rounded=is_rounded, is_merged=is_merged)
    model = trained.loaded.model
    seeing = None if trained.processor is None else PictureTokens(trained.processor, run.run_id)
    reference = Reference.of(model, trained.loaded.tokenizer, seeing, trained.end_ids)
    # Weights rounded as in training give the trained model up to the last bits.
    compare = Comparer(reference, None if is_rounded else request.least_bits, folder)
    if hasattr(model, "peft_config") and request.is_merged:
        model = merge_lora(model)
    if request.bits == 16 and not request.format.converts_folder:
        model = _in_half(model)
    work = Work(
        model,
        trained.loaded.tokenizer,
        request,
        compare,
        _ends(run),
        [*trained.notes],
        trained.registered_name,
        trained.processor,
        trained.rounding if is_rounded else None,
    )
    del model
    trained.loaded.model = torch.nn.Module()  # `work` decides when its memory is freed
    report(f"Writing {request.form}")
    with whole_directory(folder.resolve()) as part:
        work.write(part)
        work.notes.extend(_base_elsewhere(part))
        facts: dict[str, object] = {
            **{"run": run.run_id, "step": trained.step, "checkpoint": str(trained.checkpoint)},
            **request.facts(),
            "compared": [one.facts() for one in compare.made],
            "history": public_history(history_of(run, trained.step)),
        }
        lines = [one.words() for one in compare.made]
        write_json(part / EXPORT_FILE, facts)
        for describe in all_of("export_files"):
            describe(run, part, folder.name, trained.step, [request.words(), *lines])
        write_sums(part)
    return {**facts, "folder": str(folder.absolute()), "lines": lines, "notes": work.notes}


def _base_elsewhere(folder: Path) -> list[str]:
    """Return a note if the base model of an exported LoRA is a local folder; otherwise an empty
    list.
    """
    settings = folder / "adapter_config.json"
    base = read_json(settings).get("base_model_name_or_path") if settings.is_file() else None
    if not isinstance(base, str) or not Path(base).is_dir():
        return []
    return [phrase("deployment.exported_lora_local_base", base=base)]


def _in_half(model: torch.nn.Module) -> torch.nn.Module:
    """Convert a model to bf16, unless its weights are fp16 already."""
    weights = next(p for p in model.parameters() if p.is_floating_point())
    return model if weights.dtype is torch.float16 else model.to(torch.bfloat16)


def _ends(run: RunDirectory) -> list[str]:
    """Return the tokens that end an answer, as recorded in run.json."""
    data: Any = run.read_run().get("data") or {}
    return list(data.get("end_tokens") or {})


@dataclass
class _Trained:
    """The model of a checkpoint, loaded on the CPU, with its tokenizer and facts about it."""

    loaded: LoadedModel
    step: int
    checkpoint: Path
    registered_name: str | None
    processor: Any = None
    notes: tuple[str, ...] = ()
    end_ids: Sequence[int] = ()
    rounding: ModelChange | None = None


def export_checkpoint(run: RunDirectory, checkpoint: Path | None, folder: Path) -> JsonObject:
    """Write the model of `checkpoint`, by default the newest that verifies, to `folder`.

    Returns:
        A dictionary with run, step, checkpoint and folder.

    Raises:
        ValueError: if `folder` is not empty, or the run's record or base model is missing.
        CheckpointError: if the checkpoint is damaged, or its base model has changed.
        OSError: if the disk cannot be written to; `folder` is then empty.
    """
    refuse_what_is_there(folder)
    trained = _load(run, checkpoint)
    model, tokenizer = trained.loaded.model, trained.loaded.tokenizer
    save_model(
        model,
        tokenizer,
        folder,
        registered_name=trained.registered_name,
        processor=trained.processor,
    )
    return {
        "run": run.run_id,
        "step": trained.step,
        "checkpoint": str(trained.checkpoint),
        "folder": str(folder.absolute()),
    }


def _load(
    run: RunDirectory,
    checkpoint: Path | None,
    *,
    is_rounded: bool = False,
    is_merged: bool = False,
) -> _Trained:
    """Load the model of a checkpoint.

    Args:
        is_rounded: round the weights of a quantization-aware run as in training. If False, load
            them as stored.
        is_merged: True if the model is a LoRA that will be merged. Its base is then loaded as in
            training, even if it was quantized.
    """
    if checkpoint is None:
        checkpoint = version_of_model(run)
    else:
        verify(checkpoint)
    snapshot = load_checkpoint(checkpoint)
    config = configuration_of(run, checkpoint)
    refuse_scores(run, config)
    manager = _manager_of(run, config, is_rounded, is_merged)
    loaded = manager.load()
    described = run.read_model()
    attach_described(loaded.model, described)
    identity = snapshot.values.get("identity", {})
    if "base_model" not in identity:
        identity = base_facts(described)
    _refuse_other_base(identity, loaded)
    tensors = snapshot.tensors["model"]
    if config.training.method != SFT:
        tensors = without_reference(tensors)
    with _form_of_phase(config, loaded.model, snapshot.values):
        load_trainable_state(loaded.model, tensors)
    end_ids: list[int] = []
    if loaded.tokenizer is not None:
        ends, known = {*_ends(run), loaded.tokenizer.eos_token}, special_tokens(loaded.tokenizer)
        end_ids = [number for number, token in known.items() if token in ends]
    if loaded.tokenizer is not None and (template := _saved_template(run.tokenizer)):
        loaded.tokenizer.chat_template = template
    if loaded.tokenizer is not None and config.training.method != SFT:
        end_ids = answer_end_ids(loaded.tokenizer)
    prepare_saving(loaded.model, end_ids)
    if manager.processor is not None and loaded.tokenizer is not None:
        for change in manager.changes:
            loaded.tokenizer.chat_template = change.template(
                loaded.tokenizer.chat_template, manager.processor
            )
        manager.processor.chat_template = loaded.tokenizer.chat_template
    name: Any = loaded.description.get("registered_name")
    step = int(snapshot.values["step"])
    is_lora = hasattr(loaded.model, "peft_config")
    kind, notes = config.model.quantization, []
    if kind and is_lora and not is_merged:
        bits = kind.removesuffix("bit")
        notes.append(phrase("deployment.exported_lora_quantized_base", bits=bits))
    changes = changes_of(config.model, config.training)
    rounding = next((change for change in changes if change.rounding is not None), None)
    if rounding is not None and rounding.rounding is not None and not is_rounded:
        notes.append(phrase("deployment.exported_without_rounding", **rounding.rounding._asdict()))
    return _Trained(
        loaded, step, checkpoint, name, manager.processor, tuple(notes), end_ids, rounding
    )


def final_step(run: RunDirectory) -> int | None:
    """Return the last step of the model in `final/`, or None if the run is not finished."""
    summary = read_summary(run) if run.is_finished() else {}
    steps = summary.get("final_step", summary.get("steps"))
    return steps if isinstance(steps, int) else None


def version_of_model(run: RunDirectory) -> Path:
    """Return the checkpoint from which `final/` was made; if there is no `final/`, the newest
    checkpoint.

    Raises:
        CheckpointError: if no checkpoint verifies.
    """
    newest = CheckpointManager(run.checkpoints).newest()
    step = final_step(run)
    if step is None or step_of(newest) == step:
        return newest
    checkpoint = by_step(Store(run.checkpoints)).get(step, newest)
    verify(checkpoint)
    return checkpoint


def _saved_template(folder: Path) -> str | dict[str, str] | None:
    """Return the chat template of a saved tokenizer (a dict if it has several), or None."""
    file = folder / TEMPLATE_FILE
    default = file.read_text(encoding="utf-8") if file.is_file() else None
    files = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    named = {file.stem: file.read_text(encoding="utf-8") for file in files}
    if not named:
        return default
    return named if default is None else {"default": default, **named}


@contextmanager
def _form_of_phase(
    config: DeploymentConfig, model: torch.nn.Module, values: Mapping[str, Any]
) -> Iterator[None]:
    """Give the model, during the block, the structure that it had when the checkpoint was saved.

    In block-wise training, layers may have been quantized or have had low-rank matrices. After the
    block, the model has ordinary layers again.
    """
    name = config.training.strategy_for(config.model)
    if not has_forms(name):
        yield
        return
    strategy = get_training_strategy(name, config.training)
    strategy.prepare_model(model)
    # The form is attached to an optimizer, too.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    strategy.take_form(model, optimizer, values["loop"].get("entered", NOT_ENTERED))
    yield
    strategy.close(is_over=True)


def _manager_of(
    run: RunDirectory, config: DeploymentConfig, is_rounded: bool, is_merged: bool
) -> ModelManager:
    """Return a manager that loads the run's initial model on the CPU."""
    revision = commit_of_base(run, config) or config.model.revision
    plain = config.model.copy_with(
        attention="auto",
        backend="auto",
        quantization=config.model.quantization if is_merged else None,
        dtype=_short_dtype(run) if is_merged and config.model.quantization else config.model.dtype,
        revision=revision,
    )
    manager = ModelManager(
        plain,
        device=torch.device("cpu"),
        seed=config.training.seed,
        tokenizer_directory=run.tokenizer if run.tokenizer.is_dir() else None,
    )
    manager.changes = [
        change
        for change in changes_of(config.model, config.training)
        if is_rounded or change.rounding is None
    ]
    manager.dequantizes = is_merged
    manager.sees = bool(run.read_model().get("sees"))
    return manager


def _short_dtype(run: RunDirectory) -> str:
    """Return the data type of the weights before quantization, as a value of `model.dtype`."""
    recorded = f"torch.{run.read_model().get('dtype')}"
    return next((name for name, dtype in DTYPES.items() if str(dtype) == recorded), "auto")


def _refuse_other_base(identity: Mapping[str, object], loaded: LoadedModel) -> None:
    base_model = base_facts(loaded.description)["base_model"]
    if identity.get("base_is_frozen") and identity["base_model"] != base_model:
        raise CheckpointError("deployment.export_base_differs", name=loaded.description["name"])
