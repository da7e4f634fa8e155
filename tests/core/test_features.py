"""The doors for features: found by looking, loaded when needed, and named nowhere in the core."""

import ast
import importlib
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from infrastructure.core import features as module
from infrastructure.core.features import (
    Feature,
    default_plugins,
    extensions_with,
    features,
    loaded,
    merged,
    models_of_features,
    plugins_of,
    run_files_of_features,
)
from infrastructure.core.messages import FEATURES, phrase

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.parent.name for path in FEATURES.glob("*/feature.py"))


def addresses(feature: Feature) -> list[str]:
    """Every address and module that a feature names."""
    values: list[object] = [getattr(feature, name) for name in vars(feature)]
    found: list[str] = []
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, tuple):
            values += value
        elif hasattr(value, "module"):
            found.append(value.module)
        elif isinstance(value, str) and value.startswith("infrastructure."):
            found.append(value)
    return found


@pytest.mark.parametrize("feature", features(), ids=lambda feature: feature.name)
def test_all_that_a_feature_names_is_in_its_folder(feature: Feature) -> None:
    for address in addresses(feature):
        assert address.startswith(f"infrastructure.features.{feature.name}.")
        loaded(address) if ":" in address else importlib.import_module(address)


def test_every_folder_is_a_feature_of_its_name() -> None:
    assert [feature.name for feature in features()] == NAMES


ADDED = {
    "conformance": "",
    "cpu_kernels": "plugins",
    "curriculum": "fields plugins contradictions",
    "dashboard": "commands notebook",
    "distillation": "fields plugins elsewhere models",
    "excel": "plugins",
    "export_gguf": "plugins",
    "export_graphs": "plugins",
    "hdf5": "plugins",
    "inference": "commands",
    "key_value_memory": "fields plugins checks",
    "leak_watch": "adds_weights plugins",
    "lm_eval": "additions",
    "metric_exporters": "fields plugins default_plugins watchers outputs",
    "notifications": "plugins",
    "profiler": "fields watchers report run_files",
    "publish": "additions export_files",
    "quantization_aware": "fields contradictions added_weights sharded check_files model_change"
    " elsewhere outputs",
    "quantum": "fields flags aliases enables needs_own_loop adds_weights plugins commands"
    " contradictions facts checks report own_code run_files on_samples names",
    "queue": "commands",
    "specification": "plugins names instead",
    "stackwise": "fields flags aliases plugins contradictions added_weights facts model_change"
    " advice objective report live folders run_files outputs names",
    "sweep": "commands",
    "tune": "commands notebook",
    "vision_tower": "fields needs_own_loop plugins contradictions facts checks check_files"
    " model_change models",
}


def test_what_each_feature_adds() -> None:
    none = Feature("")
    assert {
        one.name: " ".join(
            part.name
            for part in fields(one)
            if part.name != "name" and getattr(one, part.name) != getattr(none, part.name)
        )
        for one in features()
    } == ADDED
    assert {group: sorted(plugins_of(group)) for group in GROUPS} == GROUPS
    assert run_files_of_features() == [
        *("logs/performance/profile.json", "quantum.json", "stackwise.json")
    ]
    tower, teacher = "training.multimodal.vision_tower", "training.teacher"
    assert (models_of_features(), models_of_features(in_base=True)) == ((teacher, tower), (tower,))
    assert default_plugins("temper.sinks") == ["tensorboard"]
    assert extensions_with("adds_weights", value=False) == {"quantum", "leak_watch"}
    assert extensions_with("needs_own_loop") == {"quantum", "multimodal"}
    assert sorted(merged("outputs")) == [
        *("final-int4", "final-int8_int4", "rack", "stacks", "tensorboard")
    ]
    assert merged("elsewhere") == {
        "qat": ("model.quantization_aware",),
        **{"teacher_model": (teacher,), "teacher_model_name_or_path": (teacher,)},
    }
    assert sorted(merged("additions")) == ["eval", "export"]
    assert sorted(merged("notebook")) == ["find_fastest", "show_dashboard"]
    commands = {name: (one.group, one.resuming) for name, one in merged("commands").items()}
    assert commands == {
        "bench": ("Use a model", ()),
        "dashboard": ("Runs and backups", ()),
        "quantum": ("More", ()),
        "queue": ("Train", ("queue run",)),
        "sweep": ("Train", ("sweep",)),
        "tune": ("Before you train", ()),
    }
    for code in (*merged("instead").values(), *merged("outputs").values()):
        assert phrase(code) == f"{code}()"


GROUPS = {
    "temper.adapters": ["tactical_mappo"],
    "temper.alert_sinks": ["apprise", "webhook"],
    "temper.attention": ["products"],
    "temper.export_formats": ["gguf", "onnx", "torch-export"],
    "temper.extensions": ["leak_watch", "memory", "multimodal", "quantum"],
    "temper.formats": ["excel", "hdf5"],
    "temper.methods": ["distillation"],
    "temper.models": ["tactical_mappo"],
    "temper.sinks": ["tensorboard", "trackio", "wandb"],
    "temper.strategies": ["curriculum", "end_to_end", "progressive"],
}


def test_finding_the_features_loads_nothing_of_them() -> None:
    code = (
        "import sys; from infrastructure.core.features import features; features();"
        "print([name for name in sys.modules if name.startswith('infrastructure.features.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded_here = {name.rpartition(".")[2] for name in ast.literal_eval(out.stdout)}
    assert loaded_here == {"feature", *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_outside_names_a_module_of_a_feature(name: str) -> None:
    pattern = re.compile(rf"infrastructure\.features\.{name}\b|infrastructure/features/{name}\b")
    sources = (
        p for top in ("infrastructure", "colab", "temper") for p in (ROOT / top).rglob("*.py")
    )
    others = (path for path in sources if FEATURES / name not in path.parents)
    assert [str(path) for path in others if pattern.search(path.read_text("utf-8"))] == []


class Point:
    """An entry point of an installed package."""

    def __init__(self, name: str, feature: Feature | None) -> None:
        self.name, self.value, self.feature = name, f"{name}_package:FEATURE", feature

    def load(self) -> Feature:
        if self.feature is None:
            raise ModuleNotFoundError("No module named 'gone'")
        return self.feature


def test_features_of_packages_come_after_those_of_temper_and_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [Point(name, Feature(name)) for name in ("b", "a")]
    monkeypatch.setattr(module, "entry_points", lambda group: points if "features" in group else [])
    try:
        features.cache_clear()
        assert [feature.name for feature in features()] == [*NAMES, "a", "b"]
        points.append(Point("c", None))
        features.cache_clear()
        with pytest.raises(ValueError) as raised:
            features()
    finally:
        features.cache_clear()
    assert str(raised.value) == (
        "core.feature_failed(name=c, entry_point=c_package:FEATURE,"
        " error_type=ModuleNotFoundError, error=No module named 'gone')"
    )


class Fields:
    model_fields = ("one", "two")


def test_what_several_features_add_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:Fields"
    first = Feature("first", fields={"training": here}, checks=here)
    second = Feature("second", fields={"data": here}, report=(here, here), aliases={"x": "y"})
    third = Feature("third", fields={"data": here}, report=(here,), aliases={"z": "y"})
    monkeypatch.setattr(module, "features", lambda: (first, second, third))
    assert [*module.all_of("checks")] == [Fields]
    assert [*module.all_of("report")] == [Fields] * 3
    assert merged("aliases") == {"x": "y", "z": "y"}
    assert module.fields_for("training") == (Fields,)
    assert module.fields_of_features("data") == {"one", "two"}
    assert module.fields_of_features("model") == set()
    assert module.prefixes_of_features() == ("first_", "second_", "third_")
