"""The trainers of the installed TRL, found without importing it.

| method | TRL 1.14.2 | TRL 0.29.1 (Colab) |
| --- | --- | --- |
| dpo, grpo, rloo, reward | trl | trl |
| kto | trl | trl.experimental.kto |
| orpo | trl.experimental.orpo | trl.experimental.orpo |
"""

import ast
import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from infrastructure.config.methods import Method
from infrastructure.config.registries import METHODS
from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting
from infrastructure.core.named_object import load_object
from infrastructure.core.optional import refuse_missing


@dataclass(frozen=True)
class TrlMethod:
    """A method, with the location of its trainer and configuration in the installed TRL.

    Attributes:
        module, config_file: None if the method names its own classes.
    """

    method: Method
    module: str | None = None
    config_file: Path | None = None

    def classes(self) -> tuple[Any, Any]:
        """Import and return the classes of the trainer and its configuration."""
        name = self.method.class_name
        places = self.method.trainer, self.method.config
        if self.module is not None:
            places = f"{self.module}:{name}Trainer", f"{self.module}:{name}Config"
        trainer, config = (load_object("training method", place) for place in places)
        return trainer, config

    def own_arguments(self) -> frozenset[str]:
        """Return the configuration's arguments that TrainingArguments does not have."""
        if self.config_file is not None:
            return _fields_in(self.config_file)
        training_arguments = load_object("class", "transformers:TrainingArguments")
        known = frozenset(training_arguments.__dataclass_fields__)
        return frozenset(self.classes()[1].__dataclass_fields__) - known


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
    method: Method = METHODS.get(name)
    if method.trainer:
        return TrlMethod(method)
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    for module, files in method.modules:
        for folder in folders:
            if (folder / f"{files}_trainer.py").is_file():
                return TrlMethod(method, module, folder / f"{files}_config.py")
    others = [other for other in METHODS.built_in if other != name]
    raise InputError(
        "methods.method_not_in_trl",
        name=name,
        version=version("trl"),
        class_name=method.class_name,
        available=", ".join(other for other in others if _is_there(other, folders)),
    )


def _is_there(name: str, folders: list[Path]) -> bool:
    files = [files for _, files in METHODS.get(name).modules]
    return any((folder / f"{file}_trainer.py").is_file() for folder in folders for file in files)
