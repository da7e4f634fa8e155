"""The export of a checkpoint as a standard model folder, without a GPU or the training data."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.multimodal_config import MULTIMODAL
from infrastructure.config.sections.training_config import SFT
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.checksums import write_sums
from infrastructure.core.console import ShowLine
from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import (
    refuse_what_is_there,
    whole_directory,
    write_json,
    write_text,
)
from infrastructure.core.json_text import JsonObject, as_object
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.chat_format import special_tokens
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.tokenization import answer_end_ids
from infrastructure.deployment.export_comparison import Comparer, Reference
from infrastructure.deployment.export_request import (
    EXPORT_FILE,
    ExportRequest,
    check_possible,
    refuse_scores,
    rounding_of,
)
from infrastructure.deployment.export_work import Work
from infrastructure.deployment.publish import BEGIN, CARD, END, HERE, written_by
from infrastructure.deployment.recorded_model import base_is_recorded, recorded_model
from infrastructure.deployment.resuming import commit_of_base, configuration_of
from infrastructure.models.added_modules import attach_described
from infrastructure.models.fitting import DTYPES
from infrastructure.models.lora import merge_lora
from infrastructure.models.model_manager import LoadedModel, ModelManager
from infrastructure.models.saved_model import read_json
from infrastructure.models.saving import save_model
from infrastructure.models.saving_check import prepare_saving
from infrastructure.models.trainable_state import load_trainable_state
from infrastructure.models.vision_language import template_for_parts
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
    rounding = rounding_of(run, request)
    report(phrase("deployment.export_loading_model"))
    is_merged = request.is_merged and bool(recorded_model(run).get("lora"))
    trained = _load(run, checkpoint, is_rounded=rounding is not None, is_merged=is_merged)
    model = trained.loaded.model
    seeing = None if trained.processor is None else PictureTokens(trained.processor, run.run_id)
    reference = Reference.of(model, trained.loaded.tokenizer, seeing, trained.end_ids)
    # Weights rounded as in training give the trained model up to the last bits.
    compare = Comparer(reference, request.least_bits if rounding is None else None, folder)
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
        rounding,
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
        _write_card(run, part, folder.name, trained.step, [request.words(), *lines])
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


def _write_card(
    run: RunDirectory, folder: Path, name: str, step: int, lines: Sequence[str]
) -> None:
    """Write a README.md about the run and about the accuracy of the export."""
    card = folder / CARD
    text = card.read_text() if card.is_file() else f"---\ntags: [temper]\n---\n# {name}\n"
    text, *_ = text.partition("\n```python")  # a LoRA's usage is described below
    exported = "\n".join(f"- {line}" for line in lines)
    facts = written_by(run, HERE, folder, step)
    write_text(card, f"{text}\n{BEGIN}\n{facts}\n{END}\n\n## Exported\n\n{exported}\n")


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
    described = as_object(recorded_model(run))
    attach_described(loaded.model, described)
    identity = snapshot.values.get("identity", {})
    if "base_model" not in identity and base_is_recorded(run):
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
        if manager.vision is not None:  # the vision encoder was added to a text model
            loaded.tokenizer.chat_template = template_for_parts(
                loaded.tokenizer.chat_template, manager.processor.image_token
            )
        manager.processor.chat_template = loaded.tokenizer.chat_template
    registered = loaded.description.get("registered_name")
    name = None if registered is None else str(registered)
    step = int(snapshot.values["step"])
    is_lora = hasattr(loaded.model, "peft_config")
    kind = config.model.quantization
    notes = (
        [phrase("deployment.exported_lora_quantized_base", bits=kind.removesuffix("bit"))]
        if kind
        else []
    )
    notes = notes if is_lora and not is_merged else []
    notes += (
        [phrase("deployment.exported_lora_unknown_base")]
        if is_lora and not base_is_recorded(run)
        else []
    )
    if (rounding := config.model.quantization_aware) is not None and not is_rounded:
        notes.append(phrase("deployment.exported_without_rounding", kind=rounding))
    return _Trained(loaded, step, checkpoint, name, manager.processor, tuple(notes), end_ids)


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
    rounding = config.model.quantization_aware
    plain = config.model.copy_with(
        attention="auto",
        backend="auto",
        quantization=config.model.quantization if is_merged else None,
        dtype=_short_dtype(run) if is_merged and config.model.quantization else config.model.dtype,
        quantization_aware=rounding if is_rounded else None,
        revision=revision,
    )
    manager = ModelManager(
        plain,
        device=torch.device("cpu"),
        seed=config.training.seed,
        tokenizer_directory=run.tokenizer if run.tokenizer.is_dir() else None,
        needs_mask_token=config.training.hides_tokens,
    )
    manager.dequantizes = is_merged
    manager.sees = bool(recorded_model(run).get("sees"))
    if config.training.enables(MULTIMODAL):
        manager.vision = config.training.multimodal
    return manager


def _short_dtype(run: RunDirectory) -> str:
    """Return the data type of the weights before quantization, as a value of `model.dtype`."""
    recorded = str(recorded_model(run).get("dtype"))
    return next((name for name, dtype in DTYPES.items() if recorded in str(dtype)), "auto")


def _refuse_other_base(identity: Mapping[str, object], loaded: LoadedModel) -> None:
    base_model = base_facts(loaded.description)["base_model"]
    if identity.get("base_is_frozen") and identity["base_model"] != base_model:
        raise CheckpointError("deployment.export_base_differs", name=loaded.description["name"])
