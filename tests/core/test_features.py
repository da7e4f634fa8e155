"""The doors for features: found by looking, loaded when needed, and named nowhere in the core."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
