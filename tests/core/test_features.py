"""The doors for features: found by looking, loaded when needed, and named nowhere in the core."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.core import features as module
from infrastructure.core.features import Feature, features, loaded
from infrastructure.core.messages import FEATURES

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


def test_what_features_add_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:Fields"
    first = Feature(
        "first",
        fields={"training": here},
        plugins={"temper.extensions": {"e": "m:E"}, "temper.sinks": {"s": "m:S"}},
        needs_own_loop=True,
        default_plugins={"temper.sinks": ("s",)},
        model_change="m:change",
        models=("base",),
        run_files=("a.json",),
        checks=here,
    )
    second = Feature(
        "second",
        plugins={"temper.extensions": {"f": "m:F"}},
        adds_weights=False,
        default_plugins={"temper.sinks": ("t", "u")},
        models=("draft", "judge"),
        run_files=("b.json", "c.json"),
        report=(here, here),
        aliases={"x": "y"},
    )
    third = Feature("third", fields={"data": here}, report=(here,), aliases={"z": "y"})
    monkeypatch.setattr(module, "features", lambda: (first, second, third))
    assert [*module.all_of("checks")] == [Fields]
    assert [*module.all_of("report")] == [Fields] * 3
    assert module.merged("aliases") == {"x": "y", "z": "y"}
    assert module.plugins_of("temper.extensions") == {"e": "m:E", "f": "m:F"}
    assert module.default_plugins("temper.sinks") == ["s", "t", "u"]
    assert module.fields_for("training") == (Fields,)
    assert module.fields_of_features("data") == {"one", "two"}
    assert module.fields_of_features("model") == set()
    assert module.extensions_with("adds_weights") == {"e"}
    assert module.extensions_with("adds_weights", value=False) == {"f"}
    assert module.extensions_with("needs_own_loop") == {"e"}
    assert module.models_of_features() == ("base", "draft", "judge")
    assert module.models_of_features(in_base=True) == ("base",)
    assert module.run_files_of_features() == ["a.json", "b.json", "c.json"]
    assert module.prefixes_of_features() == ("first_", "second_", "third_")
