"""Each feature can be taken away: without its folder the rest works, and using it is one sentence.

Here all of them are taken away at once; one at a time in `make test-slow`.
"""

import argparse
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.core.features import Feature, features
from tests.one_python import run_commands
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


def flags_of(feature: Feature) -> Iterator[tuple[list[str], str]]:
    """One of its flags for settings, and one of those that it adds to each command."""
    for flags in [*feature.flags.values()][:1]:
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
    names = [name for feature in gone for name in feature.commands]
    flags = [used for feature in gone for used in flags_of(feature)]
    wrong = [[name] for name in names] + [[*command, flag, "1"] for command, flag in flags]
    train = ["train", "--preset", "ci", "--no-backups"]
    shown, trained, *refused = run_commands([["--help"], train, *wrong], tmp_path, str(product))
    assert (shown.code, trained.code) == (0, 0), trained.errors
    assert [*tmp_path.glob("runs/*/final/model.safetensors")]
    assert [name for name in names if f"  {name} " in shown.output] == []
    for word, ended in zip([*names, *(flag for _, flag in flags)], refused, strict=True):
        assert (ended.code, len(ended.errors.splitlines())) == (2, 1), word
        assert word in ended.errors
