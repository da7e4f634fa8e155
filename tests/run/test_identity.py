"""Objects that do the same are equal, and whatever decides what they do is seen or named."""

import functools
import runpy
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from infrastructure.run.compatibility import Verdict
from infrastructure.run.identity import (
    ObjectReader,
    keyed,
    new_key,
    part_differences,
    row_digest,
    what_cannot_be_compared,
)


def read(value: object) -> Any:
    return ObjectReader().read(value, "it")


def unseen(value: object) -> list[str]:
    reader = ObjectReader()
    reader.read(value, "it")
    return reader.unseen


class Kind(Enum):
    ONE = "one"


class Scaled:
    def __init__(self, factor: float, folder: str = "/here/cache") -> None:
        self.factor, self.folder = factor, folder

    def __call__(self, x: float) -> float:
        return x * self.factor


def scaling(factor: float) -> Callable[[float], float]:
    def scale(x: float, more: int = 0) -> float:
        return x * factor + more

    return scale


def adding(amount: float) -> Callable[[float], float]:
    def add(x: float, *, more: float = amount) -> float:
        return x + more

    return add


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Scaled(1.0), Scaled(2.0)),
        (scaling(1.0), scaling(2.0)),
        (adding(1.0), adding(2.0)),
        (functools.partial(scaling, 1.0), functools.partial(scaling, factor=2.0)),
        (Scaled(1.0).__call__, Scaled(2.0).__call__),
        ([1, {"a": (1, 2)}], [1, {"a": (1, 3)}]),
        ({1, 2}, {1, 3}),
        (Kind.ONE, "two"),
        (b"a", b"b"),
        (len, max),
        (float("nan"), float("inf")),
    ],
)
def test_what_an_object_holds_counts(one: object, other: object) -> None:
    assert read(one) == read(one)
    assert read(one) != read(other)


def test_where_things_lie_does_not_count() -> None:
    assert read(Scaled(1.0, "/here/cache")) == read(Scaled(1.0, "/there/cache"))
    assert read(Path("/a/b")) == read(Path("/c/b")) == read("/d/b")


def test_an_object_that_holds_itself_is_read() -> None:
    circle = Scaled(1.0)
    circle.folder = circle  # type: ignore[assignment]
    assert read(circle)["holds"]["folder"] == "…"


SCRIPT = """
import math
import helper

LIMIT = 3

def inner(x):
    return min(x, LIMIT)

class Reward:
    scale = 1.0

    def __call__(self, x):
        return inner(x) * self.scale

def reward(x):
    return [inner(one) + helper.shift(one) for one in x]
"""
HELPER = "def shift(x):\n    return x + 1\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What a script defines whose text is changed, by name."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    number = iter(range(99))

    def run(*edits: tuple[str, str], helper: str = HELPER) -> dict[str, Any]:
        text = SCRIPT
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"script{next(number)}.py"
        path.write_text(text)
        (tmp_path / "helper.py").write_text(helper)
        sys.modules.pop("helper", None)
        found = runpy.run_path(str(path), run_name="__main__")
        return {name: read(found[name]) for name in ("reward", "Reward")} | {
            "instance": read(found["Reward"]())
        }

    return run


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("min(x, LIMIT)", "max(x, LIMIT)", {"reward", "Reward", "instance"}),
        ("LIMIT = 3", "LIMIT = 4", {"reward", "Reward", "instance"}),
        ("scale = 1.0", "scale = 2.0", {"Reward", "instance"}),
        ("* self.scale", "/ self.scale", {"Reward", "instance"}),
        ("for one in x]", "for one in x[:1]]", {"reward"}),
        ("import math", "import math, json", set()),
        ("LIMIT = 3", "OTHER = 7\nLIMIT = 3", set()),
    ],
)
def test_of_a_script_what_is_used_counts_and_nothing_else(
    script: Callable[..., dict[str, Any]], old: str, new: str, names: set[str]
) -> None:
    was, now = script(), script((old, new))
    assert {name for name in was if was[name] != now[name]} == names


def test_of_a_module_that_is_imported_the_whole_file_counts(
    script: Callable[..., dict[str, Any]],
) -> None:
    was, now = script(), script(helper=HELPER + "# more\n")
    assert {name for name in was if was[name] != now[name]} == {"reward"}


def test_code_without_a_text_is_named_and_not_guessed() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(x):\n    return x\n", scope)
    assert len(unseen(scope["f"])) == 1
    [line] = what_cannot_be_compared(unseen(scope["f"]))
    assert "it (f)" in line
    assert what_cannot_be_compared([]) == []
    assert unseen(Scaled(1.0)) == unseen(scaling(2.0)) == unseen(functools.partial(len)) == []


def test_an_installed_package_counts_by_its_version() -> None:
    from torch.nn.functional import cross_entropy

    reader = ObjectReader()
    assert reader.read(cross_entropy, "it") == {"name": "torch.nn.functional:cross_entropy"}
    assert reader.packages == {"torch"}


def test_keys_differ_and_hide_what_they_hash() -> None:
    one, other = new_key(), new_key()
    assert keyed(one, "a row") == keyed(one, "a row") != keyed(other, "a row")
    assert keyed(one, "a row") != keyed(one, "another row")
    assert row_digest(one).digest() != row_digest(other).digest()


@pytest.mark.parametrize("same_libraries", [True, False])
def test_another_version_may_spell_its_own_parts_otherwise(same_libraries: bool) -> None:
    was: dict[str, Any] = {"model_config": {"eps": 1, "rope": {"theta": 1}}, "tokenizer": "a"}
    now: dict[str, Any] = {
        "model_config": {"eps": 1, "rope": {"theta": 1, "kind": 0}, "new": 0},
        "tokenizer": "b",
    }
    found = {d.name: d.verdict for d in part_differences(was, now, same_libraries=same_libraries)}
    changes, rounds = Verdict.CHANGES_THE_RESULT, Verdict.ROUNDS_OTHERWISE
    expected = {"model_config": changes, "tokenizer": changes}
    assert found == (expected if same_libraries else {"tokenizer": rounds})
    now["model_config"]["rope"]["theta"] = 2
    [first, *_] = part_differences(was, now, same_libraries=same_libraries)
    assert (first.name, first.verdict) == ("model_config", changes)
    assert "model_config.rope.theta: was 1, is 2" in str(first)
    assert first.was["rope"]["theta"] == 1  # type: ignore[index]
    assert "eps" not in first.was, "only what differs is kept in records"  # type: ignore[operator]


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, infrastructure.run.identity; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(("one", "other"), [((1,), (2,)), ((1, 2), (2, 1)), ((), (1,))])
def test_what_a_partial_was_given_by_position_counts(one: Any, other: Any) -> None:
    read = [ObjectReader().read(functools.partial(sum, *args), "part") for args in (one, other)]
    assert read[0] != read[1]
