"""Each feature can be taken away: without its folder the rest works, and using it is one sentence.

Here all of them are taken away at once; one at a time in `make test-slow`.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from infrastructure.core.features import Feature, features
from tests.slow import slow_but

ROOT = Path(__file__).parents[1]
NAMES = [feature.name for feature in features()]


@pytest.fixture(scope="module")
def product(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product without some features."""
    folder = tmp_path_factory.mktemp("product")
    for name in ("infrastructure", "colab", "temper"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    gone: str = request.param
    for name in NAMES if gone == "all" else [gone]:
        shutil.rmtree(folder / "infrastructure/features" / name)
    return folder


def temper(product: Path, folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(product)}
    command = [sys.executable, "-m", "infrastructure", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def flags_of(feature: Feature) -> Iterator[tuple[list[str], str]]:
    """Its flags for settings, and one of those that it adds to each command."""
    for flags in feature.flags.values():
        yield ["train"], flags[0]
    for command, module in feature.additions.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(module).add_arguments(parser)
        yield [command, "a"], parser._actions[-1].option_strings[0]


@pytest.mark.parametrize("product", slow_but(["all"], ["all", *NAMES]), indirect=True)
def test_the_rest_works_without_it(product: Path, tmp_path: Path) -> None:
    there = {path.parent.name for path in product.glob("infrastructure/features/*/feature.py")}
    gone = [feature for feature in features() if feature.name not in there]
    assert gone
    shown = temper(product, tmp_path, ["--help"])
    assert shown.returncode == 0
    trained = temper(product, tmp_path, ["train", "--preset", "ci", "--no-backups"])
    assert trained.returncode == 0, trained.stderr
    assert [*tmp_path.glob("runs/*/final/model.safetensors")]
    for feature in gone:
        for name in feature.commands:
            assert f"  {name} " not in shown.stdout
            used = temper(product, tmp_path, [name])
            assert (used.returncode, len(used.stderr.splitlines())) == (2, 1)
        for command, flag in flags_of(feature):
            used = temper(product, tmp_path, [*command, flag, "1"])
            assert (used.returncode, len(used.stderr.splitlines())) == (2, 1)
            assert flag in used.stderr
