"""Plug-ins by name: which one is meant, and which are refused."""

import importlib
import json
import re
import subprocess
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core import registry as registry_module
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.registry import (
    PLUGINS_VARIABLE,
    Origin,
    Registry,
    adopt_origins,
    note_origins,
    registered_addresses,
)

GROUP = "temper.tests"


class Sink:
    """A contract."""

    name: str

    def write(self, record: str) -> None: ...

    def close(self) -> None: ...


class Whole(Sink):
    def __init__(self, name: str = "whole") -> None:
        self.name = name


class Lacking:
    """No `write`."""

    name = "lacking"

    def close(self) -> None: ...


class Other(Whole): ...


def make_lacking(name: str = "x") -> Lacking:
    return Lacking()


@pytest.fixture
def sinks() -> Iterator[Registry[Any]]:
    registry: Registry[Any] = Registry("sink", GROUP, ("console", "file"))
    registry.provide({"console": Whole, "file": Whole}, Sink)
    yield registry
    registry_module._REGISTRIES.remove(registry)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make entry points, name → value, those of installed packages."""

    def make(**values: str) -> None:
        points = EntryPoints(EntryPoint(name, value, GROUP) for name, value in values.items())
        monkeypatch.setattr(registry_module, "_entry_points", points.select)

    return make


def test_ones_own_goes_before_what_is_built_in_and_that_before_what_is_installed(
    sinks: Registry[Any], install: Callable[..., None]
) -> None:
    install(console=f"{__name__}:Other", remote="tests.core.test_registry:Other")
    assert sinks.get("console") is Whole
    assert sinks.get("remote").__name__ == "Other"
    assert not sinks.is_own("console")
    with sinks.registered("console", Other):
        assert sinks.get("console") is Other
        assert sinks.is_own("console")
    assert sinks.get("console") is Whole
    assert sinks.names() == ["console", "file", "remote"]


def test_ones_own_goes_first_also_before_the_built_in_ones_are_there() -> None:
    registry: Registry[Any] = Registry("sink", GROUP, ("console",))
    registry.register("console", Other)
    registry.provide({"console": Whole}, Sink)
    assert registry.get("console") is Other
    registry_module._REGISTRIES.remove(registry)


def test_a_module_that_is_imported_anew_gives_its_new_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook reloads one that somebody has edited."""
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[Any] = Registry("loss", GROUP)
    file = tmp_path / "edited_losses.py"
    file.write_text("def loss(): return 'as it was'")
    assert registry.make("edited_losses:loss") == "as it was"
    file.write_text("def loss(): return 'as it is now, edited'")
    importlib.reload(sys.modules["edited_losses"])
    assert registry.make("edited_losses:loss") == "as it is now, edited"


def test_an_address_is_a_name(sinks: Registry[Any]) -> None:
    assert sinks.get("tests.core.test_registry:Other").__name__ == "Other"
    assert sinks.make("tests.core.test_registry:Other", "mine").name == "mine"
    for name in ("a:b", ""):
        with pytest.raises(ValueError, match=rf"plugin_name_invalid\(kind=sink, name={name}\)"):
            sinks.register(name, Whole)


def test_a_name_is_given_once_but_a_cell_may_run_again(sinks: Registry[Any]) -> None:
    def cell() -> type:
        return type("Mine", (Whole,), {"__module__": "__main__"})

    sinks.register("mine", cell())
    again = cell()
    sinks.register("mine", again)
    assert sinks.get("mine") is again
    with pytest.raises(ValueError, match=r"core\.plugin_name_taken.*kind=sink.*name=mine"):
        sinks.register("mine", Other)


def test_an_unknown_name_gets_the_nearest_and_all_there_are(
    sinks: Registry[Any], install: Callable[..., None]
) -> None:
    install(remote=f"{__name__}:Other")
    with pytest.raises(
        ValueError, match=r"core\.unknown_plugin.*meant=console\).*console, file, remote"
    ):
        sinks.get("consol")


def test_a_kind_without_any_explains_how_to_add_one() -> None:
    registry: Registry[Any] = Registry("metric", GROUP)
    with pytest.raises(
        ValueError, match=rf"no_plugin_registered\(kind=metric, name=accuracy, group={GROUP}"
    ):
        registry.get("accuracy")
    registry_module._REGISTRIES.remove(registry)


@pytest.mark.parametrize("plugin", [Lacking, 3])
def test_what_does_not_keep_the_contract_is_refused_when_it_is_registered(
    sinks: Registry[Any], plugin: Any
) -> None:
    code = "plugin_incomplete" if plugin is Lacking else "plugin_not_a_class_or_function"
    with pytest.raises(ValueError, match=rf"core\.{code}\(plugin=sink 'mine'"):
        sinks.register("mine", plugin)
    assert not sinks.has("mine")


def test_the_same_from_a_module_and_from_a_package(
    sinks: Registry[Any], install: Callable[..., None]
) -> None:
    install(remote="tests.core.test_registry:Lacking", broken="no_such_module:X")
    for name in ("tests.core.test_registry:Lacking", "remote"):
        shown = f"sink '{name}'" + (f" ({__name__}:Lacking)" if name == "remote" else "")
        with pytest.raises(ValueError) as raised:
            sinks.get(name)
        assert str(raised.value) == (
            f"core.plugin_incomplete(plugin={shown}, contract=Sink, missing=write)"
        )
    with pytest.raises(
        ValueError, match=r"core\.plugin_package_failed.*name=broken.*entry_point=no_such_module:X"
    ):
        sinks.get("broken")


def test_what_a_function_makes_is_looked_at(sinks: Registry[Any]) -> None:
    sinks.register("made", make_lacking)
    with pytest.raises(
        ValueError,
        match=r"core\.created_part_incomplete.*make_lacking.*type=Lacking, missing=write",
    ):
        sinks.make("made")


def test_a_wrong_call_is_explained_and_an_error_inside_stays_what_it_is(
    sinks: Registry[Any],
) -> None:
    def fails(name: str) -> Whole:
        raise TypeError("planted")

    sinks.register("made", make_lacking)
    sinks.register("fails", fails)
    with pytest.raises(
        ValueError, match=r"plugin_call_mismatch.*'made'.*=str, int, more, error=too many"
    ):
        sinks.make("made", "x", 3, more=4)
    with pytest.raises(TypeError, match="planted"):
        sinks.make("fails", "x")


def test_an_init_that_forgot_its_base_is_named(sinks: Registry[Any]) -> None:
    class Forgetful(Sink):
        def __init__(self) -> None: ...

    sinks.register("forgetful", Forgetful)
    with pytest.raises(ValueError, match=r"created_part_incomplete.*missing=name, hint=[^)]"):
        sinks.make("forgetful")


def test_a_plugin_may_be_the_object_itself() -> None:
    registry: Registry[Any] = Registry("quantization", GROUP)
    registry.provide({}, Sink, makes=False)
    registry.register("fine", Whole())
    assert registry.get("fine").name == "whole"
    with pytest.raises(ValueError, match=r"core\.plugin_incomplete.*missing=close, name, write\)"):
        registry.register("mine", make_lacking)
    registry_module._REGISTRIES.remove(registry)


def test_an_abstract_method_is_lacking(sinks: Registry[Any]) -> None:
    from abc import ABC, abstractmethod

    class Abstract(ABC):
        @abstractmethod
        def write(self) -> None: ...

    sinks.provide({}, Abstract)
    with pytest.raises(ValueError, match=r"core\.plugin_incomplete.*missing=write"):
        sinks.register("mine", type("Mine", (Abstract,), {}))


def test_a_helper_process_knows_what_was_registered(sinks: Registry[Any]) -> None:
    sinks.register("mine", Other)
    sinks.register("local", type("Local", (Whole,), {"__module__": "__main__"}))
    assert json.loads(registered_addresses())[GROUP] == {"mine": "tests.core.test_registry:Other"}
    helper = HelperProcess(
        "tests.core.helper_registry", GROUP, "mine", stdout=subprocess.PIPE, own_session=False
    )
    assert helper.stdout is not None
    with helper.stdout as stdout:
        assert json.loads(stdout.read()) == ["Other", True, ["mine"], True]
    assert helper.wait(60) == 0, helper.last_words


def test_what_no_other_process_could_import_is_refused_where_one_needs_it(
    sinks: Registry[Any],
) -> None:
    sinks.register("fine", Other)
    sinks.register("local", type("Local", (Whole,), {"__module__": "__main__"}))
    sinks.require_shareable("fine")
    sinks.require_shareable("console")
    for name, shown in (("local", "'local' (__main__:Local)"), ("__main__:X", "'__main__:X'")):
        with pytest.raises(ValueError) as raised:
            sinks.require_shareable(name)
        assert str(raised.value) == f"core.plugin_not_importable(plugin=sink {shown})"


def test_an_origin_names_where_a_plugin_comes_from(
    sinks: Registry[Any], install: Callable[..., None]
) -> None:
    install(remote=f"{__name__}:Other")
    sinks.register("mine", Other)
    sinks.register("local", type("Local", (Whole,), {"__module__": "__main__"}))
    here = f"{__name__}:Other"
    assert sinks.origin("mine") == sinks.origin(here) == sinks.origin("remote") == Origin(here)
    assert sinks.origin("local") == Origin(None)
    assert sinks.origin("console") is sinks.origin("nothing") is None
    assert sinks.origin("pytest:fixture") == Origin(
        "pytest:fixture", f"pytest=={pytest.__version__}"
    )


def test_a_run_that_goes_on_has_its_own_plugins_and_the_next_one_has_not(
    sinks: Registry[Any],
) -> None:
    here = Origin(f"{__name__}:Other")
    note_origins({GROUP: {"theirs": Origin("no_such_module:X"), "noted": here}})
    assert sinks.has("theirs")
    assert not sinks.is_here("theirs")
    adopt_origins({GROUP: {"console": here, "theirs": here}})
    assert sinks.get("console") is sinks.get("theirs") is sinks.get("noted") is Other
    assert sinks.is_own("console"), "it is not the one that is built in"
    assert (sinks.origin("theirs"), sinks.names()) == (here, ["console", "file", "theirs"])
    assert json.loads(registered_addresses())[GROUP]["theirs"] == f"{__name__}:Other"
    adopt_origins({})
    assert sinks.get("console") is Whole
    assert not sinks.is_own("theirs")


@pytest.mark.parametrize(
    ("origin", "sentence"),
    [
        (Origin("no_such:X"), r"core\.plugin_module_not_found\(.*module=no_such,"),
        (Origin(None), r"core\.plugin_of_another_script\(kind=sink, name=mine\)"),
        (None, "what=sink, name=mine,"),
        (Origin("tests.core.test_registry:Other"), None),
    ],
)
def test_what_a_run_began_with_and_is_not_here_explains_how_to_get_it(
    sinks: Registry[Any], origin: Origin | None, sentence: str | None
) -> None:
    problem = sinks.problem("mine", origin)
    assert (problem is None) if sentence is None else re.search(sentence, str(problem))
    with sinks.registered("mine", Other):
        assert sinks.problem("mine", origin) is None


def test_an_installed_package_is_taken_although_its_module_has_moved(
    sinks: Registry[Any], install: Callable[..., None]
) -> None:
    install(remote=f"{__name__}:Other")
    moved = Origin("their.old_module:Other", "theirs==1")
    assert sinks.problem("remote", moved) is None
    adopt_origins({GROUP: {"remote": moved}})
    assert sinks.get("remote").__name__ == "Other"
    adopt_origins({})


def test_a_package_that_is_installed_meanwhile_is_noticed(
    sinks: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert "remote" not in sinks.names()
    info = tmp_path / "parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nremote = {__name__}:Other\n")
    assert "remote" in sinks.names()
    assert sinks.origin("remote") == Origin(f"{__name__}:Other", "parts==1.0")


@pytest.fixture
def plain() -> Iterator[Registry[Any]]:
    """Any functions."""
    registry: Registry[Any] = Registry("loss", GROUP)
    yield registry
    registry_module._REGISTRIES.remove(registry)


def test_a_function_needs_no_contract_and_a_built_in_one_no_signature(
    plain: Registry[Any],
) -> None:
    plain.register("pairs", dict)
    assert plain.make("pairs", [("a", 1)], b=2) == {"a": 1, "b": 2}
    with pytest.raises(
        ValueError, match=r"^core\.plugin_not_a_function\(plugin=loss 'three' \(3\)\)"
    ):
        plain.register("three", 3)
    assert plain.problem(f"{__name__}:Other") is None
    no_such = r"^core\.plugin_module_not_found\(kind=loss, address=no_such:x, module=no_such,"
    assert re.match(no_such, str(plain.problem("no_such:x")))


@pytest.mark.parametrize(
    ("num_there", "missing"), [(0, range(7)), (1, range(1, 8))], ids=["nine", "eight"]
)
def test_of_many_missing_parts_eight_are_listed_and_the_required_ones_first(
    num_there: int, missing: range, plain: Registry[Any]
) -> None:
    contract = ABCMeta("Many", (), {f"part_{n}": n for n in range(9)})
    contract.__abstractmethods__ = frozenset({"part_8"})
    plain.provide({}, contract)
    listed = ", ".join(["part_8", *(f"part_{n}" for n in missing)])
    with pytest.raises(ValueError) as raised:
        plain.register("few", type("Few", (), {f"part_{n}": n for n in range(num_there)}))
    more = "" if num_there else " and 1 more"
    assert str(raised.value).endswith(f", contract=Many, missing={listed}{more})")


def test_a_plug_in_may_check_whether_it_is_usable(plain: Registry[Any]) -> None:
    called: list[str] = []
    first, second = (lambda: None), (lambda: None)
    first.check_usable = lambda: called.append("first")  # type: ignore[attr-defined]
    plain.register("first", first)
    plain.register("second", second)
    plain.check_usable(["second", "first"])
    assert called == ["first"]


def test_a_process_that_nobody_started_has_inherited_nothing() -> None:
    probe = f"import os; assert {PLUGINS_VARIABLE!r} not in os.environ"
    subprocess.run([sys.executable, "-c", probe], check=True)
