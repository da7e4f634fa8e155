"""The short `--help` text of a command that has a flag for every setting.

It shows the most used flags; `--help-all` shows all of them.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import flag_names

FLAG_WIDTH = 27
DEFAULT = "{default}"  # is replaced by the setting's default, so that no text can be wrong about it

QUANTIZED = "quantize the base weights; QLoRA with --lora"
_STATED_DEFAULT = re.compile(r"\((?:default:|\{default\})[^)]*\)")

# By title: the key of a setting, the placeholder of its value, and its description.
FAMILIAR: dict[str, dict[str, tuple[str, str]]] = {
    "model": {
        "model.name": ("NAME", "folder or Hub name (default: a small new model)"),
        "model.lora_config": ("", "train LoRA adapters instead of all weights"),
        "model.lora_config.r": ("N", f"LoRA rank ({DEFAULT})"),
        "model.quantization": ("4bit|8bit", QUANTIZED),
    },
    "data": {
        "data.eval_path": ("FILE", "held-out data (default: a part of DATA)"),
        "data.max_length": ("N", f"longest example, in tokens ({DEFAULT})"),
        "data.train_on": ("answers|last_answer|all", f"tokens to train on ({DEFAULT})"),
    },
    "training": {
        "training.num_epochs": ("N", "passes over the data (default: 3; new model: 4)"),
        "training.max_steps": ("N", "stop after N optimizer steps"),
        "training.batch_size": ("N|auto", f"examples per forward pass ({DEFAULT})"),
        "training.gradient_accumulation": ("N", f"forward passes per step ({DEFAULT})"),
        "training.learning_rate": ("X|auto", f"peak learning rate ({DEFAULT})"),
        "training.optimizer": ("NAME", f"adamw, adamw_8bit, paged_adamw, sgd, … ({DEFAULT})"),
        "training.seed": ("N", f"random seed ({DEFAULT})"),
        "training.deadline": ("TIME", "save and stop within TIME, such as 11h or 90min"),
        "price_per_hour": ("PRICE", "for a cost forecast, such as 2.5 or '2.5 EUR'"),
    },
    "output": {
        "output_dir": ("FOLDER", f"directory of the runs ({DEFAULT})"),
        "run_name": ("NAME", "name of a new run and part of its directory name"),
        "backup.place": ("PLACE", "back up to a folder, Drive, s3://…, hf://buckets/OWNER/NAME"),
        "training.checkpoint_frequency": ("N", "save a checkpoint every N optimizer steps"),
        "training.metrics_sinks": ("NAMES", f"metrics outputs ({DEFAULT})"),
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
NOTES = {"temper resume": "Flags change settings of the run. All others stay as in the run."}
HEADINGS = {("temper eval", "training"): "evaluation"}


def short_help(
    parser: argparse.ArgumentParser,
    unused: Collection[str] = (),
    texts: Mapping[str, str] = {},
    examples: Sequence[str] = (),
) -> str:
    """Return the `--help` text of a parser that has a flag for every setting.

    Args:
        unused, texts, examples: the attributes of a `CommandParser`.
    """
    fields = schema_of(DeploymentConfig).fields
    useful = SETTINGS.difference(unused)
    flags_of_settings = {flag for key in fields for flag in flag_names(key)}
    words = [action for action in parser._actions if not action.option_strings]
    own = [
        action
        for action in parser._actions
        if action.option_strings and not flags_of_settings & {*action.option_strings}
    ]
    usage = " ".join(
        f"[{word.metavar}]" if word.nargs == "?" else str(word.metavar) for word in words
    )
    lines = [
        f"usage: {parser.prog} {usage} [flags]".replace("  ", " "),
        "",
        parser.description or "",
    ]
    lines += ["", NOTES[parser.prog]] if parser.prog in NOTES else []
    lines += [""] if words else []
    lines += [line for word in words for line in _entry(str(word.metavar), str(word.help))]
    for title, settings in FAMILIAR.items():
        shown = {key: text for key, text in settings.items() if key in useful}
        as_in_run, words_for_run = INHERITED.get(parser.prog, ((), ""))
        heading = HEADINGS.get((parser.prog, title), title)
        lines += ["", f"{heading}:"] if shown else []
        for key, (value, text) in shown.items():
            text = texts.get(key, text)
            default = f"default: {plain(fields[key].default)}"
            if key in as_in_run:
                text, default = _STATED_DEFAULT.sub(f"({DEFAULT})", text), words_for_run
            if text is QUANTIZED and "model.lora_config" not in useful:  # nothing is trained
                text = "quantize the weights"
            name = f"{flag_names(key)[0]} {value}".rstrip()
            lines += _entry(name, text.replace(DEFAULT, default))
    lines += ["", "other flags:"]
    for action in own:
        name = f"{action.option_strings[-1]} {action.metavar or ''}".rstrip()
        text = str(action.help).split(". ")[0] % {"prog": parser.prog}
        lines += _entry(name, text)
    if examples:
        lines += ["", "examples:", *(f"  {example}" for example in examples)]
    return "\n".join(lines) + "\n"


def _entry(name: str, text: str) -> list[str]:
    """Format a flag and its description, indented, and on several lines on a narrow terminal."""
    width = max(40, min(shutil.get_terminal_size().columns, 100))
    lines = textwrap.wrap(text, width - FLAG_WIDTH - 2) or [""]
    first, *rest = lines
    if len(name) >= FLAG_WIDTH:
        return [f"  {name}", *(" " * (FLAG_WIDTH + 2) + line for line in lines)]
    return [f"  {name:<{FLAG_WIDTH}}{first}", *(" " * (FLAG_WIDTH + 2) + line for line in rest)]
