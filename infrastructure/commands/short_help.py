"""The `--help` text of a command.

For a command that has a flag for every setting, `--help` shows only the most used ones;
`--help-all` shows all.
"""

import argparse
import functools
import re
import shutil
import textwrap
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import flag_names

FLAG_WIDTH = 27
DEFAULT = "{default}"  # is replaced by the setting's default, so that no text can be wrong about it

QUANTIZED = "4 or 8 bits for the base model; with --lora: QLoRA"
_LAST_BRACKET = re.compile(r"\(default: .*\)$")
_USAGES = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}  # by the number of values that are accepted
_STATED_DEFAULT = re.compile(r"\((?:default:|\{default\})[^)]*\)")

# By title: the key of a setting, the placeholder of its value, and its description.
FAMILIAR: dict[str, dict[str, tuple[str, str]]] = {
    "model": {
        "model.name": ("NAME", "folder or Hub name (default: small, from scratch)"),
        "model.lora_config": ("", "train LoRA adapters instead of all weights"),
        "model.lora_config.r": ("N", f"LoRA rank ({DEFAULT})"),
        "model.quantization": ("4bit|8bit", QUANTIZED),
    },
    "data": {
        "data.eval_path": ("FILE", "held-out data (default: a part of DATA)"),
        "data.max_length": ("N", f"maximum tokens per example ({DEFAULT})"),
        "data.train_on": ("answers|last_answer|all", f"which tokens to train on ({DEFAULT})"),
    },
    "training": {
        "training.num_epochs": ("N", "passes over the data (default: 3; new model: 4)"),
        "training.max_steps": ("N", "stop at step N, counted from the start of the run"),
        "training.batch_size": ("N|auto", f"examples per forward pass ({DEFAULT})"),
        "training.gradient_accumulation": ("N", f"forward passes per step ({DEFAULT})"),
        "training.learning_rate": ("X|auto", f"peak learning rate ({DEFAULT})"),
        "training.optimizer": (
            "NAME",
            f"optimizer: adamw, adamw_8bit, paged_adamw, sgd, … ({DEFAULT})",
        ),
        "training.seed": ("N", f"random seed ({DEFAULT})"),
        "training.deadline": ("TIME", "save and stop within TIME from now, such as 11h"),
        "price_per_hour": ("PRICE", "price per hour for the cost forecast, such as 2.5"),
    },
    "output": {
        "output_dir": ("FOLDER", f"folder that contains your runs ({DEFAULT})"),
        "run_name": (
            "NAME",
            "name of a new run (default: the model's name)",
        ),
        "backup.place": (
            "PLACE",
            "backup destination: a folder, drive:FOLDER, s3://…, gs://…, hf://buckets/OWNER/NAME",
        ),
        "training.checkpoint_frequency": ("N", "save a checkpoint every N optimizer steps"),
        "training.metrics_sinks": (
            "NAMES",
            f"where metrics are written; jsonl always is ({DEFAULT})",
        ),
        "new_run": ("", "start a new run even if one could be resumed"),
    },
}
SETTINGS = frozenset(key for settings in FAMILIAR.values() for key in settings)
# By command: the settings that have the values of a run if they are not given, and how to say so.
IN_RUN, IN_MODELS_RUN = "default: as in the run", "default: as in the model's run"
INHERITED = {
    "temper eval": (("data.max_length", "data.train_on"), IN_MODELS_RUN),
    "temper resume": (SETTINGS - {"output_dir"}, IN_RUN),
}
_AS_IN_TRAIN = "Accepts the settings of `temper train`; some have no effect here."
NOTES = {
    **dict.fromkeys(("temper check", "temper tune", "temper config"), _AS_IN_TRAIN),
    "temper resume": "Each flag changes that setting of the run; all other settings keep their"
    " values. A change that affects the result also needs --accept.",
}
HEADINGS = {("temper eval", "training"): "evaluation"}


def short_help(parser: Any) -> str:
    """Return the `--help` text of a command.

    Args:
        parser: a `CommandParser`, whose module imports this one.
    """
    fields = schema_of(DeploymentConfig).fields
    useful = SETTINGS.difference(parser.unused)
    flags_of_settings = {flag for key in fields for flag in flag_names(key)}
    words = [
        action
        for action in parser._actions
        if not action.option_strings and action.help != argparse.SUPPRESS
    ]
    own = [
        action
        for action in parser._actions
        if action.option_strings
        and not (parser.is_long() and flags_of_settings & {*action.option_strings})
    ]
    usage = " ".join(_USAGES.get(str(word.nargs), "{}").format(word.metavar) for word in words)
    usage = re.sub(r"\[(\w+)\] (\[\w+\])$", r"[\1 \2]", usage)  # the second needs the first
    lines = [
        f"usage: {parser.typed} {usage} [flags]".replace("  ", " "),
        "",
        *_wrapped(parser.description or ""),
    ]
    lines += ["", *_wrapped(NOTES[parser.prog])] if parser.prog in NOTES else []
    for word in words:
        inner = [(choice.dest, choice.help) for choice in getattr(word, "_choices_actions", [])]
        lines += [""] if word is words[0] else []
        for name, text in inner or [(word.metavar, word.help)]:
            lines += _entry(str(name), str(text))
        if inner:
            note = f"`{parser.typed} {word.metavar} --help` lists the flags of an action."
            lines += ["", *_wrapped(note)]
    for title, settings in FAMILIAR.items() if parser.is_long() else ():
        shown = {key: text for key, text in settings.items() if key in useful}
        as_in_run, words_for_run = INHERITED.get(parser.prog, ((), ""))
        heading = HEADINGS.get((parser.prog, title), title)
        lines += ["", f"{heading}:"] if shown else []
        for key, (value, text) in shown.items():
            text = parser.texts.get(key, text)
            default = f"default: {plain(fields[key].default)}"
            if key in as_in_run:
                text, default = _STATED_DEFAULT.sub(f"({DEFAULT})", text), words_for_run
            if text is QUANTIZED and "model.lora_config" not in useful:  # nothing is trained
                text = "quantize the weights"
            name = f"{flag_names(key)[0]} {value}".rstrip()
            lines += _entry(name, text.replace(DEFAULT, default))
    lines += ["", "other flags:" if parser.is_long() else "flags:"]
    lines += [line for action in own for line in _entry(*_words_of(action, parser.prog))]
    lines += ["", *_wrapped(parser.epilog)] if parser.epilog else []
    if parser.examples:
        lines += ["", "examples:", *(f"  {example}" for example in parser.examples)]
    return "\n".join(lines) + "\n"


def _words_of(action: argparse.Action, prog: str) -> tuple[str, str]:
    """Return an option with the placeholder of its value, and its short description.

    The short description is the first sentence of the help text, and the default if there is one.
    """
    flag = next(name for name in action.option_strings if name.startswith("--"))
    choices = "{" + ",".join(map(str, action.choices or ())) + "}"
    value = _placeholders().get(flag) or action.metavar
    value = value or (choices if action.choices else action.dest.upper())
    text = str(action.help) % {"prog": prog}
    sentence, _, rest = text.partition(". ")
    default = "".join(_LAST_BRACKET.findall(rest))
    text = f"{sentence[0].lower()}{sentence[1:]} {default}".rstrip() if default else sentence
    return (flag if action.nargs == 0 else f"{flag} {value}"), text


@functools.cache
def _placeholders() -> dict[str, str]:
    """Return a mapping of flag → placeholder of its value, for the familiar settings."""
    settings = (item for section in FAMILIAR.values() for item in section.items())
    return {flag_names(key)[0]: value for key, (value, _) in settings}


def _width() -> int:
    return max(40, min(shutil.get_terminal_size().columns, 100))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width(), break_on_hyphens=False)


def _entry(name: str, text: str) -> list[str]:
    """Format an option and its description, on several lines if the terminal is narrow."""
    width = _width()
    lines = textwrap.wrap(text, width - FLAG_WIDTH - 2, break_on_hyphens=False) or [""]
    first, *rest = lines
    if len(name) >= FLAG_WIDTH:
        return [f"  {name}", *(" " * (FLAG_WIDTH + 2) + line for line in lines)]
    return [f"  {name:<{FLAG_WIDTH}}{first}", *(" " * (FLAG_WIDTH + 2) + line for line in rest)]
