"""The card of an exported or published model: a README.md about its run.

In an existing card of a repository, only the part between Temper's two markers is replaced, so that
text of the user is kept.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infrastructure.config.auto import learning_rate_for
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.methods import SFT
from infrastructure.config.registries import EXPORT_FORMATS, METHODS
from infrastructure.core.checksums import read_record
from infrastructure.core.errors import DamagedFileError, InputError
from infrastructure.core.files import write_text
from infrastructure.core.json_text import JsonObject, JsonValue, as_object, as_text, parse_json
from infrastructure.core.messages import phrase
from infrastructure.core.optional import DISTRIBUTION, require
from infrastructure.deployment.export_request import EXPORT_FILE, SAFETENSORS
from infrastructure.models.answer_end import GENERATION_FILE
from infrastructure.models.saved_model import code_of_quantization, read_json, words_of_quantization
from infrastructure.monitoring.drawing.tables import before_after_rows
from infrastructure.run.directory import RunDirectory
from infrastructure.run.history import (
    History,
    history_of,
    public_history,
    stretch_words,
    stretches,
)
from infrastructure.run.record_types import RunRecord
from infrastructure.training.methods.check import setting_names
from infrastructure.training.strategies import has_forms

CARD = "README.md"
BEGIN, END = "<!-- written by Temper: begin -->", "<!-- written by Temper: end -->"
WRITTEN = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
LORA_CONFIG = "adapter_config.json"
FROM_SCRATCH = ("embedded", "registered")
ARGUMENT = "trainer."  # the prefix of a Trainer's arguments in run.json
ARGUMENTS_SHOWN = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "beta", "loss_type"),
    *("num_generations", "max_completion_length", "temperature", "seed"),
)
# By transformers class: the model's task on the Hub, and the class and variable for its input.
WRITES, SEES = "AutoModelForCausalLM", "AutoModelForImageTextToText"
TASKS = {
    WRITES: ("text-generation", "AutoTokenizer", "tokenizer"),
    SEES: ("image-text-to-text", "AutoProcessor", "processor"),
    "AutoModelForSequenceClassification": ("text-classification", "AutoTokenizer", "tokenizer"),
}


LOAD_MODEL = """\
from transformers import {model_class}, {input_class}

model = {model_class}.from_pretrained("{name}")
{input} = {input_class}.from_pretrained("{name}")"""
LOAD_LORA = """\
from peft import PeftModel
from transformers import {model_class}, {input_class}{generation}{quantized}

base = {model_class}.from_pretrained({base})
model = PeftModel.from_pretrained(base, "{name}")
{ends}{input} = {input_class}.from_pretrained("{name}")"""
LORA_ENDS = 'model.generation_config = GenerationConfig.from_pretrained("{name}")\n'
# Prompts are formatted as in training; the answer is greedy, as in `temper ask`.
PROMPT_BY_TEMPLATE = """
messages = [{system}{{"role": "user", "content": "your question"}}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)"""
PLAIN_PROMPT = """
# As in the training: the question, a line break, and then the answer.
inputs = tokenizer("your question\\n", return_tensors="pt", return_token_type_ids=False)"""

ANSWERING = """
written = model.generate(**inputs, max_new_tokens=256, do_sample=False)
print(tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""

OF_ITS_AUTHOR = '"BASE"'  # a folder that only the author has
HERE = "."  # the folder that contains the card


NEEDS_TORCHAO = "# pip install torchao\n"


def write_card(run: RunDirectory, folder: Path, name: str, step: int, lines: Sequence[str]) -> None:
    """Write a README.md about the run and about the accuracy of the export."""
    card = folder / CARD
    text = card.read_text() if card.is_file() else f"---\ntags: [temper]\n---\n# {name}\n"
    text, *_ = text.partition("\n```python")  # a LoRA's usage is described below
    exported = "\n".join(f"- {line}" for line in lines)
    facts = written_by(run, HERE, folder, step)
    write_text(card, f"{text}\n{BEGIN}\n{facts}\n{END}\n\n## Exported\n\n{exported}\n")


def card_of_repository(was: str, name: str, folder: Path, run: RunDirectory, step: int) -> str:
    """Return the text of the model card of the repository `name`.

    Args:
        was: the existing card, whose facts about the run are replaced; "" for a new card.

    Raises:
        ValueError: if the front matter of the card is not YAML.
    """
    cards = require("huggingface_hub", "a model card")
    facts = f"{BEGIN}\n{written_by(run, name, folder, step)}\n{END}"
    try:
        card = cards.ModelCard(was or f"---\ntags: [temper]\n---\n# {name}\n")
    except Exception as error:
        raise InputError(
            "publish.model_card_unreadable", card=CARD, repository=name, reason=error
        ) from error
    is_lora = (folder / LORA_CONFIG).is_file()
    card.data.base_model = _base_on_hub(run.read_model())
    card.data.library_name = "peft" if is_lora else "transformers"
    card.data.pipeline_tag, *_ = TASKS[_model_class(run)]
    text, count = WRITTEN.subn(lambda _: facts, card.text)
    card.text = text if count else f"{card.text.rstrip()}\n\n{facts}\n"
    return str(card.content)


def written_by(run: RunDirectory, name: str, folder: Path, step: int) -> str:
    """Return the part of the model card that Temper writes.

    It describes how the model in `folder` was trained, the measurements, and how to load the model.
    The model is loaded from the repository `name`, or if that is HERE, from the folder of the card.

    Raises:
        ValueError: if run.json is missing or damaged.
    """
    record, config = run.read_run(), run.read_configuration()
    model, data = run.read_model(), record.get("data", {})
    summary = _summary(run)
    total = summary.get("total_steps")
    is_sft = config.training.method == SFT
    history = history_of(run, step)
    settings = _settings(record, config, total) if is_sft else _settings_of_method(record)
    settings |= _by_stretch(settings, history, step, {} if is_sft else setting_names())
    quantized = words_of_quantization(_quantization(run))
    method = [] if is_sft else [("method", f"{METHODS.get(config.training.method).title} of TRL")]
    rows = [
        ("base model", _base_words(model)),
        *([("base", quantized)] if quantized else []),
        ("trained", _trained_words(model)),
        *method,
        ("steps", f"{step:,}" if step == total or total is None else f"{step:,} of {total:,}"),
        ("rows", _rows_words(data)),
        ("settings", ", ".join(f"`{key}` {_shown(value)}" for key, value in settings.items())),
        ("precision", str(record.get("precision", "–"))),
        ("begun", str(record.get("created", "–"))),
        ("made with", _versions(record.get("versions", {}))),
    ]
    lines = [
        phrase("publish.card_training_heading"),
        "",
        *_markdown(("", ""), rows),
        *_changed(history),
        "",
    ]
    lines += ["## Measured", ""]
    before, after = as_object(summary.get("before") or {}), as_object(summary.get("after") or {})
    measured = before_after_rows(before, after, summary.get("loss_function"))
    rounding = as_object(model.get("rounding") or {})
    if step != total or not after:
        lines.append(phrase("publish.card_checkpoint_not_measured"))
    elif measured:
        lines += _markdown(("on held-out rows", "before", "after", "change"), measured)
        if rounding and not _is_rounded(folder):
            lines += ["", phrase("publish.card_measured_rounded", **rounding)]
    else:
        lines.append(phrase("publish.card_nothing_measured"))
    where = phrase("publish.card_in_this_folder") if name == HERE else ""
    return "\n".join(
        [*lines, "", f"## Use it\n\n{where}```python", _loading(run, name, folder), "```"]
    )


def _by_stretch(
    settings: Mapping[str, JsonValue], history: History, step: int, names: Mapping[str, str]
) -> JsonObject:
    """Return the settings that changed during the run, each with its values and their ranges of
    steps.

    Args:
        names: maps a setting to its name in the history, if the two names differ.
    """
    parts = {key: stretches(history, names.get(key, key), step) for key in settings}
    return {key: stretch_words(stretch) for key, stretch in parts.items() if len(stretch) > 1}


def _changed(history: History) -> list[str]:
    """Return a table of the changes during the run; empty if there were none."""
    rows = [
        (
            f"{one['after_step']}",
            str(one["name"]),
            plain(one["was"]) if "was" in one else "–",
            plain(one["is"]) if "is" in one else "–",
            str(one["effect"]),
        )
        for one in public_history(history)
    ]
    if not rows:
        return []
    heading = ("after step", "what changed", "from", "to", "effect")
    return ["", "Changed during the run:", "", *_markdown(heading, rows)]


def _settings(record: RunRecord, config: DeploymentConfig, total: object) -> JsonObject:
    """Return the settings that determined the result, with the values that the run used."""
    training = config.training
    from_scratch = record.get("model", {}).get("kind") in FROM_SCRATCH
    batch_size = record.get("decided", {}).get("training.batch_size")
    strategy = training.strategy_for(config.model)
    # Each phase with its own schedule shortens the warmup for itself. A model that was assembled
    # from two has a first phase for what connects them.
    has_phases = has_forms(strategy) or bool(record.get("model", {}).get("second_base"))
    warmup = training.warmup_steps
    if isinstance(total, int) and not has_phases:
        warmup = training.warmup_within(total)
    return {
        "batch_size": batch_size["value"] if batch_size else training.batch_size,
        "gradient_accumulation": training.gradient_accumulation,
        "learning_rate": learning_rate_for(training, config.model, from_scratch),
        "scheduler_type": training.scheduler_type,
        "warmup_steps": warmup,
        "optimizer": training.optimizer,
        "weight_decay": training.weight_decay,
        "strategy": strategy,
        "loss": training.loss,
        "seed": training.seed,
    }


def _settings_of_method(record: RunRecord) -> JsonObject:
    """Return the arguments of TRL's trainer that differ from their defaults, with the
    values used.
    """
    values = {key.removeprefix(ARGUMENT): one["value"] for key, one in record["config"].items()}
    return {name: values[name] for name in ARGUMENTS_SHOWN if name in values}


def _shown(value: object) -> str:
    """Return a setting as text. A computed number is rounded to its significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _trained_words(model: JsonObject) -> str:
    """Return a phrase that names the trained weights, such as a LoRA of rank 16."""
    lora = as_object(model.get("lora") or {})
    added = ", ".join(as_object(model.get("extensions") or {}))
    trained = (
        phrase("publish.card_trained_lora", rank=lora.get("r"))
        if lora
        else phrase("deployment.trains_all")
    )
    if rounding := as_object(model.get("rounding") or {}):
        trained += phrase("publish.card_rounded", kind=rounding["kind"])
    if not added:
        return trained
    return phrase("publish.card_trained_with_extension", trained=trained, added=added)


def _is_rounded(folder: Path) -> bool:
    """Return whether a saved model has weights that torchao rounded as in training."""
    config = folder / "config.json"
    text = config.read_bytes() if config.is_file() else "{}"
    rounding = as_object(as_object(parse_json(text)).get("quantization_config") or {})
    return rounding.get("quant_method") == "torchao"


def _rows_words(data: Mapping[str, object]) -> str:
    if "num_train" not in data:  # a Trainer's run
        return phrase("publish.card_rows_of_trainer", num_train=_number(data, "num_examples"))
    return phrase(
        "publish.card_rows",
        num_train=_number(data, "num_train"),
        num_held_out=_number(data, "num_evaluation"),
    )


def _summary(run: RunDirectory) -> JsonObject:
    try:
        return read_record(run.summary_file)
    except (OSError, DamagedFileError):  # a checkpoint of a run that was killed
        return {}


def _base_words(model: JsonObject) -> str:
    if model.get("kind") in FROM_SCRATCH:
        size = model.get("num_parameters")
        return phrase(
            "publish.card_base_from_scratch", architecture=model.get("architecture"), size=size
        )
    if (hub := _base_on_hub(model)) is not None:
        return phrase("publish.card_base_on_hub", hub=hub, revision=model.get("revision"))
    return phrase("publish.card_base_local_folder", name=Path(str(model.get("name"))).name)


def _base_on_hub(model: JsonObject) -> str | None:
    return str(model["name"]) if model.get("kind") == "hub" else None


def _number(record: Mapping[str, object], key: str) -> str:
    value = record.get(key)
    return f"{value:,}" if isinstance(value, int) else phrase("publish.card_unknown_number")


def _versions(packages: dict[str, str]) -> str:
    try:
        own = version(DISTRIBUTION)
    except PackageNotFoundError:  # a checkout that is on the path but not installed
        own = ""
    known = {"Temper": own, **{name: packages.get(name, "") for name in ("torch", "transformers")}}
    return ", ".join(f"{name} {number}".strip() for name, number in known.items())


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [
        f"| {' | '.join(cell.strip().replace('|', chr(92) + '|') for cell in one)} |"
        for one in lines
    ]


def _model_class(run: RunDirectory) -> str:
    """Return the transformers class that loads the trained model."""
    method = run.read_configuration().training.method
    if method != SFT:
        return METHODS.get(method).head
    return SEES if run.read_model().get("sees") else WRITES


def _loading(run: RunDirectory, name: str, folder: Path) -> str:
    if (folder / "temper_model.json").is_file():
        return phrase("publish.card_load_own_module")
    if usage := _usage_of_format(folder):
        return usage
    if added := run.read_model().get("extensions"):
        return phrase("publish.card_load_extensions", names=", ".join(added))
    model_class = _model_class(run)
    _, input_class, prepares = TASKS[model_class]
    base = base_of_lora(name, folder)
    if base is not None and (code := _quantization_code(run)):
        base = f"\n    {base},\n    {code}\n"
    knows_ends = (folder / GENERATION_FILE).is_file()
    lines = (LOAD_MODEL if base is None else LOAD_LORA).format(
        name=name,
        base=base,
        model_class=model_class,
        input_class=input_class,
        input=prepares,
        generation=", GenerationConfig" if knows_ends else "",
        quantized=", BitsAndBytesConfig" if base is not None and "BitsAndBytes" in base else "",
        ends=LORA_ENDS.format(name=name) if knows_ends else "",
    )
    use = _prompting(run, folder, model_class)
    return f"{NEEDS_TORCHAO if _is_rounded(folder) else ''}{lines}{use}"


def _usage_of_format(folder: Path) -> str:
    """Return the code that loads an export; "" if the export is a transformers folder."""
    export = read_json(folder / EXPORT_FILE) if (folder / EXPORT_FILE).is_file() else {}
    usage: str = EXPORT_FORMATS.make(str(export.get("format", SAFETENSORS))).usage
    return usage


def _prompting(run: RunDirectory, folder: Path, model_class: str) -> str:
    """Return code that prompts the model in the format used in training.

    Return "" for a vision-language model, or if the format is unknown.
    """
    settings = folder / "tokenizer_config.json"
    if model_class == SEES or not settings.is_file():
        return ""
    tokenizer = as_object(parse_json(settings.read_text(encoding="utf-8")))
    has_template = (folder / "chat_template.jinja").is_file() or "chat_template" in tokenizer
    if model_class != WRITES:
        return phrase("publish.card_use_reward_model") if has_template else ""
    is_sft = run.read_configuration().training.method == SFT
    if is_sft and run.read_run().get("data", {}).get("shape") == "text":
        return phrase("publish.card_use_text_model") + ANSWERING
    if has_template:
        system = _summary(run).get("system_prompt")
        turn = "" if system is None else f'{{"role": "system", "content": {system!r}}}, '
        return PROMPT_BY_TEMPLATE.format(system=turn) + ANSWERING
    return PLAIN_PROMPT + ANSWERING if is_sft else ""


def _quantization_code(run: RunDirectory) -> str:
    """Return the arguments that load a LoRA's base model with the quantization of the training.

    Return "" if it was not quantized. Without these arguments, the LoRA would be added to weights
    that differ from those in training.
    """
    return code_of_quantization(_quantization(run), str(run.read_model().get("dtype")))


def _quantization(run: RunDirectory) -> str | None:
    kind = run.read_model().get("quantization") or run.read_configuration().model.quantization
    return None if kind is None else str(kind)


def base_of_lora(name: str, folder: Path) -> str | None:
    """Return the Python expression for the base model of a LoRA; None if the model is not a
    LoRA.
    """
    if not (folder / LORA_CONFIG).is_file():
        return None
    if (folder / "base").is_dir():
        return f'"{name}", subfolder="base"'
    settings = as_object(parse_json((folder / LORA_CONFIG).read_text()))
    where = as_text(settings["base_model_name_or_path"])
    is_of_hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", where) and not Path(where).exists()
    if name == HERE and not is_of_hub:
        return json.dumps(str(Path(where).absolute()))
    return f'"{where}"' if is_of_hub else OF_ITS_AUTHOR
