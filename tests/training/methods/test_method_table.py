"""What the installed TRL has is found without importing it, and what it lacks is refused."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from infrastructure.config.methods import Method, RowKind
from infrastructure.config.registries import METHODS
from infrastructure.core.errors import MissingPackageError
from infrastructure.training.methods import method_table
from infrastructure.training.methods.method_table import installed_method

# Which files of trainers a version has; as in the table of docs/methods.md.
FILES_0_29_1 = (
    *("trainer/dpo", "trainer/grpo", "trainer/kto", "trainer/reward", "trainer/rloo"),
    *("experimental/kto/kto", "experimental/orpo/orpo"),
)


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    for name in FILES_0_29_1:
        file = folder / f"{name}_trainer.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    spec = ModuleSpec("trl", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(method_table, "version", lambda name: version)


@pytest.mark.parametrize("name", METHODS.built_in)
def test_the_installed_version_has_every_method(name: str) -> None:
    trl = pytest.importorskip("trl")
    if trl.__version__ != "1.14.2":
        pytest.skip("another column of the table")
    installed = installed_method(name)
    assert installed.module == ("trl.experimental.orpo" if name == "orpo" else "trl")
    trainer, config = installed.classes()
    assert trainer.__name__ == f"{METHODS.get(name).class_name}Trainer"
    assert installed.own_arguments() <= set(config.__dataclass_fields__)
    assert installed.own_arguments()


def test_an_older_version_has_some_elsewhere_and_lacks_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, "0.29.1")
    modules = {n: installed_method(n).module for n in METHODS.built_in if n != "distillation"}
    assert modules == {
        **dict.fromkeys(("dpo", "grpo", "rloo", "reward"), "trl"),
        "kto": "trl.experimental.kto",
        "orpo": "trl.experimental.orpo",
    }
    parts = "name=distillation, version=0\\.29\\.1, class_name=Distillation"
    there = "available=dpo, kto, orpo, grpo, rloo, reward"
    refusal = rf"methods\.method_not_in_trl\({parts}, {there}\)"
    with pytest.raises(ValueError, match=refusal):
        installed_method("distillation")


def test_without_trl_the_refusal_names_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"core\.package_not_installed.*package=trl"):
        installed_method("dpo")


def test_a_method_of_ones_own_names_its_classes() -> None:
    trl = pytest.importorskip("trl")
    method = Method("mine", "Mine", RowKind.PAIRS, trainer="trl:DPOTrainer", config="trl:DPOConfig")
    with METHODS.registered("mine", method):
        installed = installed_method("mine")
    assert installed.classes() == (trl.DPOTrainer, trl.DPOConfig)
    assert installed.own_arguments() >= {"beta", "max_length", "label_smoothing"}
    assert "weight_decay" not in installed.own_arguments()
