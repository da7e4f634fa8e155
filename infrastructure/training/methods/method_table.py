"""Table of TRL's training methods, with the modules that contain their trainers.

| method | TRL 1.14.2 | TRL 0.29.1 (Colab) | | --- | --- | --- | | dpo, grpo, rloo, reward | trl |
trl | | kto | trl | trl.experimental.kto | | orpo | trl.experimental.orpo | trl.experimental.orpo |
| distillation | trl | not available |

This does not import TRL.
"""

import ast
import importlib
import importlib.util
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting
from infrastructure.core.optional import refuse_missing


class RowKind(Enum):
    """The kinds of rows that a method trains on. The values are message codes of their names."""

    PAIRS = "methods.pairs"
    JUDGED = "methods.judged_answers"
    PROMPTS = "methods.prompts"


@dataclass(frozen=True)
class Method:
    """A TRL method, such as DPO or GRPO.

    Attributes:
        title: the name shown to users.
        class_name: the common prefix of the class names of its trainer and its configuration.
        modules: possible locations of its trainer, as (module, name of its files). The first
            existing one is used.
        rows: the kind of rows that it trains on.
        head: the transformers auto class of its model.
        reads: the inputs of the chat template besides messages that a row may have.
    """

    title: str
    class_name: str
    modules: tuple[tuple[str, str], ...]
    rows: RowKind
    head: str = "AutoModelForCausalLM"
    reads: frozenset[str] = frozenset()


def _stable(name: str) -> tuple[str, str]:
    return "trl", f"trainer/{name}"


def _experimental(name: str) -> tuple[str, str]:
    return f"trl.experimental.{name}", f"experimental/{name}/{name}"


TOOLS, OPTIONS = "tools", "chat_template_kwargs"
BOTH = frozenset({TOOLS, OPTIONS})
METHODS = {
    "dpo": Method("DPO", "DPO", (_stable("dpo"),), RowKind.PAIRS, reads=BOTH),
    # 0.29.1 has a stub of it in trl that warns, 1.14.2 one in trl.experimental without this file
    "kto": Method("KTO", "KTO", (_experimental("kto"), _stable("kto")), RowKind.JUDGED, reads=BOTH),
    "orpo": Method(
        "ORPO", "ORPO", (_experimental("orpo"),), RowKind.PAIRS, reads=frozenset({OPTIONS})
    ),
    "grpo": Method("GRPO", "GRPO", (_stable("grpo"),), RowKind.PROMPTS),
    "rloo": Method("RLOO", "RLOO", (_stable("rloo"),), RowKind.PROMPTS),
    "reward": Method(
        "reward modelling",
        "Reward",
        (_stable("reward"),),
        RowKind.PAIRS,
        "AutoModelForSequenceClassification",
        BOTH,
    ),
    "distillation": Method(
        "distillation", "Distillation", (_stable("distillation"),), RowKind.PROMPTS
    ),
}


@dataclass(frozen=True)
class TrlMethod:
    """A method, with the location of its trainer and configuration in the installed TRL."""

    method: Method
    module: str
    config_file: Path

    def classes(self) -> tuple[Any, Any]:
        """Import and return the classes of the trainer and its configuration."""
        module, name = importlib.import_module(self.module), self.method.class_name
        return getattr(module, f"{name}Trainer"), getattr(module, f"{name}Config")

    def own_arguments(self) -> frozenset[str]:
        """Return the configuration's arguments that TrainingArguments does not have."""
        return _fields_in(self.config_file)


@cache
def _fields_in(file: Path) -> frozenset[str]:
    """Return the names of class fields in a Python file, without importing it."""
    classes = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)]
    nodes = (node for one in classes for node in one.body if isinstance(node, ast.AnnAssign))
    return frozenset(n.target.id for n in nodes if isinstance(n.target, ast.Name))


def installed_method(name: str) -> TrlMethod:
    """Find the trainer of a method in the installed TRL.

    Raises:
        MissingPackageError: TRL is not installed. The text says how to install it.
        ValueError: the installed version does not have this method.
    """
    refuse_missing("trl", format(Setting("training.method", name)))
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    method = METHODS[name]
    for module, files in method.modules:
        for folder in folders:
            if (folder / f"{files}_trainer.py").is_file():
                return TrlMethod(method, module, folder / f"{files}_config.py")
    there = ", ".join(other for other in METHODS if other != name and _is_there(other, folders))
    raise InputError(
        "methods.method_not_in_trl",
        name=name,
        version=version("trl"),
        class_name=method.class_name,
        available=there,
    )


def _is_there(name: str, folders: list[Path]) -> bool:
    files = [files for _, files in METHODS[name].modules]
    return any((folder / f"{file}_trainer.py").is_file() for folder in folders for file in files)
