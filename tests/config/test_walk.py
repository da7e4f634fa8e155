"""The way of one option through the configuration is short: read, merged, checked once, put in its
section."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import infrastructure
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue
from infrastructure.config.sources.load import load_config

FOLDER = Path(infrastructure.__file__).parent / "config"
VALUE = 7654321  # no other value is this number


def holds(thing: Any) -> bool:
    """Whether something handed to a function is the option, or settings with it among them."""
    if isinstance(thing, str | int):
        return str(thing) == str(VALUE) or str(thing).endswith("gradient_accumulation")
    if isinstance(thing, GivenValue):
        return holds(thing.value)
    if isinstance(thing, dict):
        return any(map(holds, thing.values()))
    return isinstance(thing, list | tuple) and any(map(holds, thing))


def walk(load: Callable[[], DeploymentConfig]) -> list[tuple[str, str]]:
    """(file, function) of each call in the configuration's folder that is handed the option."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(FOLDER)):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
        if any(holds(frame.f_locals.get(name)) for name in names):
            file = Path(code.co_filename).relative_to(FOLDER).as_posix()
            calls.append((file, code.co_name))

    load()  # what is made once is made
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        config = load()
    finally:
        sys.setprofile(before)
    assert config.training.gradient_accumulation == VALUE
    return calls


def by_flag(_: Path) -> DeploymentConfig:
    return load_config(environment={}, flags={"--gradient-accumulation": str(VALUE)})


def by_file(folder: Path) -> DeploymentConfig:
    (folder / "file.yaml").write_text(f"training:\n  gradient_accumulation: {VALUE}\n")
    return load_config(folder / "file.yaml", environment={})


def by_keyword(_: Path) -> DeploymentConfig:
    return DeploymentConfig(training={"gradient_accumulation": VALUE})


@pytest.mark.parametrize("load", [by_flag, by_file, by_keyword])
def test_an_option_is_merged_and_checked_once(
    load: Callable[[Path], DeploymentConfig], tmp_path: Path
) -> None:
    calls = walk(lambda: load(tmp_path))
    assert len({file for file, _ in calls}) <= 5
    assert len(calls) <= 40
    for once in ("merge", "check_value", "_plain_value", "nested", "of_checked"):
        assert [name for _, name in calls].count(once) == 1, once


def test_a_list_that_is_changed_afterwards_was_not_set_so() -> None:
    config = DeploymentConfig(**{"training.metrics_sinks": ["jsonl"]})
    config.training.metrics_sinks.append("csv")
    assert config.source("training.metrics_sinks").place == "assigned in Python"
