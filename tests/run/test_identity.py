"""Objects that do the same are equal, and whatever decides what they do is seen or named."""

import functools
import hashlib
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.utils.data import Dataset

from infrastructure.run import identity
from infrastructure.run.compatibility import Verdict
from infrastructure.run.identity import (
    DEEPEST,
    ObjectReader,
    is_ours,
    is_own,
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


class Kept:
    pass


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
    assert "run.code_of(name=it, function=f)" in line
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


def keyword(x: int, *, more: int = 1) -> int:
    return x + more


def positional(x: int, more: int = 1) -> int:
    return x + more


class Plain:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("held",)


# What is read of each value: exactly this, and so nothing that is not the value's own.
READ: list[tuple[Any, Any]] = [
    *((None, None), (True, True), (0, 0), (1.5, 1.5), ("a/b", "a/b"), ("/x/a", "a")),
    *((float("nan"), "nan"), (float("-inf"), "-inf"), (Kind.ONE, "one"), (Path("x/a"), "a")),
    (re.compile("a", re.IGNORECASE), ["a", int(re.IGNORECASE | re.UNICODE)]),
    (b"a", hashlib.sha256(b"a").hexdigest()),
    ((1, [2.0, {"a": Kind.ONE}]), [1, [2.0, {"a": "one"}]]),
    ({1: None, "b": (1,)}, {"1": None, "b": [1]}),
    ({"b", "a", "c"}, ["a", "b", "c"]),
    (frozenset({2, 10, None}), [10, 2, None]),
    (len, {"name": "builtins:len"}),
    (math, "math"),
    (
        functools.partial(cast(Any, len), 1, b=2),
        {"partial of": {"name": "builtins:len"}, "given": {"args": [1], "b": 2}},
    ),
]


@pytest.mark.parametrize(("value", "expected"), READ, ids=str)
def test_a_value_is_read_as_it_is(value: Any, expected: Any) -> None:
    found = read(value)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(found, list):
        assert [type(one) for one in found] == [type(one) for one in expected]


def test_a_method_is_read_with_what_it_belongs_to() -> None:
    found = read(Scaled(1.5).__call__)
    assert found == {"method": "__call__", "of": read(Scaled(1.5))}
    assert found["of"]["holds"] == {"factor": 1.5, "folder": "cache"}


def test_a_higher_layer_decides_what_it_knows() -> None:
    known: Any = {"a tensor": 7}
    reader = ObjectReader(lambda value: known if isinstance(value, complex) else None)
    assert reader.read([1j, {"x": 1j}], "it") == [known, {"x": known}]
    assert reader.read(Plain(x=1j, y=2), "it")["holds"] == {"x": known, "y": 2}  # type: ignore[index,call-overload]
    library: Any = reader.read(SimpleNamespace(x=1j, y=object()), "it")
    assert library["holds"] == {"x": known}
    assert reader.unseen == []


def test_all_that_an_object_of_a_script_holds_is_read() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("class Own:\n    def __init__(self, part): self.part = part\n", scope)
    one, other = (read(scope["Own"](Plain(x=x))) for x in (1, 2))
    assert one["holds"]["part"]["holds"] == {"x": 1}
    assert one != other


def test_objects_are_read_to_a_depth_and_repeats_are_kept() -> None:
    nested: Any = "end"
    for _ in range(DEEPEST):
        nested = [nested]
    assert "end" in str(read(nested))
    assert "end" not in str(read([nested]))
    shared = [1]
    assert read([shared, shared]) == [[1], [1]], "only one that holds itself is cut"
    reader = ObjectReader()
    many = [reader.read([[number]], "it") for number in range(2 * DEEPEST)]
    assert many == [[[number]] for number in range(2 * DEEPEST)]


def test_of_an_object_of_a_library_plain_attributes_count() -> None:
    from fractions import Fraction

    one, other = SimpleNamespace(a=1, b=object()), SimpleNamespace(a=2, b=object())
    assert read(one)["holds"] == {"a": 1}
    assert read(one) != read(other)
    assert unseen(one) == []
    assert unseen([Fraction(1, 2)]) == ["it[0] (Fraction)"], "nobody can see what it holds"
    assert unseen(object()) == ["it (object)"]
    assert unseen(Slotted()) == unseen(Plain()) == unseen(ObjectReader()) == []
    held = Plain(a=object(), b=[Plain(c=1)])
    assert read(held)["holds"]["b"][0]["holds"] == {"c": 1}
    assert unseen(held) == ["it.a (object)"]


def test_of_an_object_of_temper_only_the_name_counts() -> None:
    name = {"name": "infrastructure.run.identity:ObjectReader"}
    assert read(ObjectReader()) == name == read(ObjectReader)
    assert is_ours(ObjectReader)
    assert not is_own(ObjectReader)
    assert [is_own(each) for each in (Plain, keyword, len, functools.partial)] == [
        *(True, True),
        *(False, False),
    ]
    assert not any(map(is_ours, (Plain, len)))


@pytest.mark.parametrize("function", [keyword, positional])
def test_a_function_counts_with_its_defaults_and_its_file(function: Any) -> None:
    found = read(function)
    assert found["name"] == function.__name__
    assert found["defaults"] == [1]
    assert any(file.endswith("test_identity.py") for file in found["files"])
    assert "closure" not in found
    assert "bases" not in found


def test_what_a_function_closes_over_counts_as_far_as_it_has_a_value() -> None:
    def outer() -> Callable[[], Any]:
        def inner() -> Any:
            return given, late

        given = 5
        if not given:
            late = 1
        return inner

    assert read(outer())["closure"] == {"given": 5}
    assert "defaults" not in read(outer())
    assert read(scaling(2.0))["closure"] == {"factor": 2.0}
    assert read(scaling(2.0))["defaults"] == [0]


def test_of_an_installed_function_only_its_version_counts() -> None:
    reader = ObjectReader()
    assert reader.read(functools.wraps, "it") == {"name": "functools:wraps"}
    assert reader.read(pytest.raises, "it") == {"name": "_pytest.raises:raises"}
    assert reader.packages == {"functools", "_pytest"}
    assert reader.read(pytest, "it") == "pytest"


def test_a_class_counts_with_its_bases(script: Callable[..., dict[str, Any]]) -> None:
    class Child(Scaled):
        pass

    class OfTorch(Dataset[Any]):
        pass

    class Both(Scaled, Kept):
        pass

    assert [base["name"] for base in read(Child)["bases"]] == ["Scaled"]
    assert [base["name"] for base in read(Both)["bases"]] == ["Scaled", "Kept"]
    assert read(OfTorch)["bases"][0] == {"name": "torch.utils.data.dataset:Dataset"}
    base = ("class Reward:", "class Base:\n    x = 1\n\nclass Reward(Base):")
    was, now = script(base), script((base[0], base[1].replace("x = 1", "x = 2")))
    assert {name for name in was if was[name] != now[name]} == {"Reward", "instance"}


MEMBERS = """
class Reward:
    scale = 1.0
    _hidden = 2
    names = ["a"]
    kind = object

    @staticmethod
    def fixed(x):
        return x + 1

    @classmethod
    def made(cls):
        return cls()

    @property
    def shown(self):
        return 3

    def nested(self):
        return [LIMIT for _ in range(2)], (lambda: OTHER)

def reward():
    return Reward().nested()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + 1", "x + 2"),
        ("return cls()", "return cls"),
        ("return 3", "return 4"),
        ("range(2)", "range(3)"),
        ("_hidden = 2", "_hidden = 3"),
        ('["a"]', '["b"]'),
        ("LIMIT = 3", "LIMIT = 4"),
        ("OTHER = 5", "OTHER = 6"),
    ],
)
def test_each_member_of_a_class_counts(
    script: Callable[..., dict[str, Any]], old: str, new: str
) -> None:
    start = SCRIPT[SCRIPT.index("class Reward") :]
    members = "OTHER = 5\n" + MEMBERS
    was = script((start, members))
    now = script((start, members), (old, new))
    assert {name for name in was if was[name] != now[name]} == {"reward", "Reward", "instance"}


@pytest.mark.parametrize(("first", "second"), [("scale = 1.0", "scale = 2.0"), ("1 + 1", "1 + 2")])
def test_a_class_without_a_text_is_named_by_each_method(first: str, second: str) -> None:
    def made(line: str) -> Any:
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(
            f"class Own:\n    {line}\n    def f(self): return 1\n    def g(self): return 2\n", scope
        )
        return scope["Own"]

    assert unseen(made(first)) == [f"run.code_of(name=it, function=Own.{name})" for name in "fg"]
    if "=" in first:
        assert read(made(first)) != read(made(second))


# -- what differs ---------------------------------------------------------------------------------


def found(was: Any, now: Any, **options: Any) -> list[Any]:
    return list(part_differences(was, now, **{"same_libraries": True, **options}))


def test_parts_that_differ_are_yielded_in_their_order_and_others_are_not() -> None:
    was, now = {"a": 1, "b": 2, "c": None, "d": 4}, {"a": 1, "b": 3, "e": 5}
    assert [(d.name, d.was, d.current) for d in found(was, now)] == [
        *(("b", 2, 3), ("d", 4, None), ("e", None, 5)),
    ]
    [first, *others] = found(was, now, verdicts={"b": Verdict.HARMLESS})
    assert first.verdict is Verdict.HARMLESS
    assert {d.verdict for d in others} == {Verdict.CHANGES_THE_RESULT}


@pytest.mark.parametrize("same_libraries", [True, False])
@pytest.mark.parametrize("name", ["tokenizer", "processor", "lora", "chat_template", "trainer"])
def test_parts_of_libraries_may_gain_and_lose_keys(name: str, same_libraries: bool) -> None:
    options = {"same_libraries": same_libraries}
    is_quiet = name != "trainer" and not same_libraries
    was, now = {name: {"a": 1, "gone": 1}}, {name: {"a": 1, "new": {"b": 1}}}
    assert (found(was, now, **options) == []) is is_quiet
    now[name]["a"] = 2
    [difference] = found(was, now, **options)
    rounds = name in ("tokenizer", "processor") and not same_libraries
    expected = Verdict.ROUNDS_OTHERWISE if rounds else Verdict.CHANGES_THE_RESULT
    assert difference.verdict is expected
    assert len(found({name: {"a": 1}}, {name: None}, **options)) == 1
    assert len(found({}, {name: {"a": 1}}, **options)) == 1


@pytest.mark.parametrize("same_libraries", [True, False])
def test_of_an_optimizer_what_both_know_is_compared(same_libraries: bool) -> None:
    was: Any = {"optimizer": {"name": "a", "groups": [1]}}
    options = {"same_libraries": same_libraries}
    assert found(was, {"optimizer": {"name": "a"}}, **options) == []
    assert len(found(was, {"optimizer": {"name": "b"}}, **options)) == 1
    assert len(found(was, {"optimizer": {"groups": [2]}}, **options)) == 1


def test_of_rows_no_record_keeps_the_hash() -> None:
    was = {"data": {"rows": "a" * 64, "num_examples": 1, "same": 0}}
    now = {"data": {"rows": "b" * 64, "num_examples": 2, "same": 0}}
    [difference] = found(was, now)
    assert (difference.was, difference.current) == ({"num_examples": 1}, {"num_examples": 2})
    assert difference.text == "run.number_of_rows_changed(name=data, was=1, now=2)"
    [difference] = found({"data": {"rows": "a"}}, {"data": {"rows": "b"}})
    assert (difference.was, difference.current) == ({}, {})
    assert difference.text == "run.rows_changed(name=data)"
    [difference] = found({"data": {"rows": "a", "b": 1}}, {"data": {"rows": "b", "b": 2}})
    assert difference.text == "run.rows_changed(name=data); data.b: was 1, is 2"


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (1, 2, "p: was 1, is 2"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "p.a[1]: was 2, is 3"),
        ([1, 2], [1], "p: was [1, 2], is [1]"),
        ([1], {"a": 1}, "p: was [1], is {'a': 1}"),
        ({"a": 1}, [1], "p: was {'a': 1}, is [1]"),
        ({"a": 1, "b": 1}, {"b": 2}, "p.a: was 1, is None; p.b: was 1, is 2"),
        ({}, {"c": 3}, "p.c: was None, is 3"),
        ([1, 1, 1], [2, 2, 2], "p[0]: was 1, is 2; p[1]: was 1, is 2; p[2]: was 1, is 2"),
        (
            [1] * 5,
            [2] * 5,
            "p[0]: was 1, is 2; p[1]: was 1, is 2; p[2]: was 1, is 2 and 2 more",
        ),
        ("a" * 64, "b" * 60, f"p: was {'a' * 12}, is {'b' * 60}"),
        ("a b" + "c" * 61, "d" * 61, f"p: was a b{'c' * 54}…, is {'d' * 57}…"),
        ("a" * 63, "b" * 65, f"p: was {'a' * 57}…, is {'b' * 57}…"),
    ],
)  # fmt: skip
def test_a_difference_is_described_by_its_path(was: Any, now: Any, expected: str) -> None:
    [difference] = found({"p": was}, {"p": now})
    assert difference.text == expected


def test_no_secret_is_described() -> None:
    token = "hf_" + "aB3" * 12
    [difference] = found({"p": token}, {"p": "none"})
    assert token not in difference.text


def test_what_cannot_be_compared_is_listed_once() -> None:
    [line] = what_cannot_be_compared(["one", "two", "one"])
    assert line.count("one") == 1
    assert line.index("one") < line.index("two")


def test_keys_are_as_long_as_the_hash_that_takes_them() -> None:
    assert len(bytes.fromhex(new_key())) == 32 == row_digest(new_key()).digest_size


def test_of_a_class_of_a_notebook_its_own_plain_attributes_count() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("class Own:\n    'text'\n    x, _y, made, mixed = 1, 2, object(), [1, object()]", scope)
    reader = ObjectReader()
    assert cast(Any, reader.code_of(scope["Own"], "it"))["source"] == {"x": 1, "_y": 2}


def test_a_variable_without_a_value_hides_no_other() -> None:
    def made() -> Callable[[], object]:
        def inner() -> object:
            return a_first, b_second  # a closure lists its variables by name

        b_second = 7
        if not b_second:
            a_first = 1
        return inner

    assert cast(Any, ObjectReader().read(made(), "it"))["closure"] == {"b_second": 7}


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        *((None, True), ([1, None], True), ([1, object()], False), ((object(), 1), False)),
        *(({"a": 1, "b": {2}}, True), ({"a": 1, "b": len}, False), (object(), False)),
    ],
)
def test_a_value_is_plain_where_all_of_it_is(value: object, is_plain: bool) -> None:
    assert identity._is_plain(value) is is_plain


def test_what_has_no_name_is_called_by_its_class() -> None:
    assert identity._qualname(SimpleNamespace()) == "SimpleNamespace"
    assert identity._qualname(Path.exists) == "Path.exists"


def test_values_inside_keep_their_sides() -> None:
    was = {"lora": {"rope": {"theta": 1, "gone": 0}}}
    now = {"lora": {"rope": {"theta": 2, "new": 0}}}
    [found] = part_differences(was, now, same_libraries=False)
    assert (found.was, found.current) == ({"rope": {"theta": 1}}, {"rope": {"theta": 2}})


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        *(("/a/site-packages/b/c.py", True), ("/a/dist-packages/c.py", True)),
        *(("/a/unsloth_compiled_cache/c.py", True), ("/a/packages/c.py", False), (None, False)),
    ],
)
def test_a_module_is_installed_where_packages_lie(
    file: str | None, is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "one_of_these", cast(Any, SimpleNamespace(__file__=file)))
    identity._is_installed.cache_clear()
    assert identity._is_installed("one_of_these") is is_one
    assert identity._is_installed("one_of_none") is False
    assert identity._is_installed("email.header") is True
    monkeypatch.setitem(sys.modules, "__main__", cast(Any, SimpleNamespace(__file__=file)))
    identity._is_installed.cache_clear()
    assert identity._is_installed("__main__") is False
    identity._is_installed.cache_clear()


@pytest.mark.parametrize(
    ("num_rows", "changed", "text"),
    [
        (9, [2, 4], "run.rows_differ(name=data, count=2, total=9, first=3)"),
        (1000, [999], "run.rows_differ(name=data, count=1, total=1000, first=1000)"),
        (1001, [2, 4], "run.rows_differ_from(name=data, first=5, last=6)"),
        (2500, [0], "run.rows_differ_from(name=data, first=1, last=3)"),
        (9, [], "run.rows_changed(name=data)"),
    ],
)
def test_where_rows_have_changed_is_known_by_their_blocks(
    num_rows: int, changed: list[int], text: str
) -> None:
    blocks = [f"{n}" for n in range(-(-num_rows // identity.block_size(num_rows)))]
    others = [f"{block}x" if n in changed else block for n, block in enumerate(blocks)]
    assert len(blocks) <= identity.MOST_BLOCKS
    was, now = (
        {"data": {"rows": rows, "blocks": each, "num_examples": num_rows}}
        for rows, each in (("a", blocks), ("b", others))
    )
    [difference] = part_differences(was, now, same_libraries=True)
    assert difference.text == text
    assert (difference.was, difference.current) == ({}, {}), "no hash is recorded"


@pytest.mark.parametrize("name", ["tokenizer", "processor", "lora", "data_collator"])
def test_only_what_makes_tokens_may_differ_with_another_library(name: str) -> None:
    for same_libraries in (True, False):
        [found] = part_differences({name: "a"}, {name: "b"}, same_libraries=same_libraries)
        rounds = not same_libraries and name in ("tokenizer", "processor")
        expected = Verdict.ROUNDS_OTHERWISE if rounds else Verdict.CHANGES_THE_RESULT
        assert found.verdict is expected
        given = {name: Verdict.HARMLESS}
        [found] = part_differences({name: "a"}, {}, same_libraries=True, verdicts=given)
        assert found.verdict is Verdict.HARMLESS


def test_keys_that_are_new_or_gone_are_part_of_a_difference() -> None:
    was, now = {"r": 4, "gone": 1, "same": 0}, {"r": 4, "new": 2, "same": 0}
    [found] = part_differences({"lora": was}, {"lora": now}, same_libraries=True)
    assert found.was == {"gone": 1, "new": None}
    assert found.current == {"gone": None, "new": 2}
    assert found.text == "lora.gone: was 1, is None; lora.new: was None, is 2"


def test_of_many_differences_three_are_shown() -> None:
    values = {f"k{n}": n for n in range(5)}
    for number, more in ((3, ""), (4, " and 1 more"), (5, " and 2 more")):
        was = dict([*values.items()][:number])
        now = {key: value + 10 for key, value in was.items()}
        [found] = part_differences({"lora": was}, {"lora": now}, same_libraries=True)
        shown = "; ".join(f"lora.k{n}: was {n}, is {n + 10}" for n in range(3))
        assert found.text == shown + more
