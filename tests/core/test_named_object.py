"""Somebody's own class or function by its address."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.core.lookup import look_up
from infrastructure.core.named_object import (
    address_of,
    is_address,
    load_object,
    look_in_folder_of,
    missing_module,
    module_file,
    source_file,
)

SOURCE = """
class Curriculum:
    class Inner: ...


def late():
    import their_neighbour

    return their_neighbour.VALUE
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which, as for the `temper` command, is not in Python's path."""
    monkeypatch.chdir(tmp_path)
    here = [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", here)
    (tmp_path / "their_module.py").write_text(SOURCE)
    (tmp_path / "their_neighbour.py").write_text("VALUE = 3\n")
    (tmp_path / "json.py").write_text("raise SystemExit('a file that lies there by chance')\n")
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("their_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("module:Class", True),
        ("package.module:Class.method", True),
        ("standard", False),
        ("s3://bucket", False),
        ("a:", False),
        (":b", False),
        ("a b:c", False),
        ("drive:/folder", False),
        ("a::b", False),
        ("1a:b", False),
    ],
)
def test_what_an_address_looks_like(text: str, expected: bool) -> None:
    assert is_address(text) is expected


def test_a_module_of_the_current_folder_is_found_and_may_import_its_neighbours_later() -> None:
    assert missing_module("strategy", "their_module:Curriculum") is None
    assert "their_module" not in sys.modules, "looking imports nothing"
    assert load_object("strategy", "their_module:Curriculum").__name__ == "Curriculum"
    assert load_object("strategy", "their_module:Curriculum.Inner").__name__ == "Inner"
    assert load_object("strategy", "their_module:late")() == 3


def test_what_is_installed_is_not_hidden_by_a_file_that_lies_there() -> None:
    assert load_object("function", "infrastructure.core.lookup:look_up") is look_up
    assert load_object("function", "json:dumps")([1]) == "[1]"


def test_a_module_that_is_nowhere_names_where_it_was_looked_for(folder: Path) -> None:
    for refuse in (load_object, lambda what, address: _raised(missing_module(what, address))):
        with pytest.raises(
            ValueError,
            match=r"core\.plugin_module_not_found.*kind=strategy.*address=no_such:X.*module=no_such",
        ) as caught:
            refuse("strategy", "no_such:X")
        found_nowhere, _, search_path = str(caught.value).partition(", search_path=")
        assert f"folder={folder}" in found_nowhere
        assert sys.path[-1] in search_path


def _raised(sentence: str | None) -> None:
    raise ValueError(sentence)


def test_a_module_that_cannot_be_imported_gives_the_reason(folder: Path) -> None:
    (folder / "their_broken.py").write_text("import no_such_package\n")
    with pytest.raises(ValueError) as raised:
        load_object("sink", "their_broken:X")
    assert str(raised.value) == (
        "core.plugin_import_failed(kind=sink, address=their_broken:X, module=their_broken,"
        " error_type=ModuleNotFoundError, error=No module named 'no_such_package')"
    )


def test_a_name_that_the_module_does_not_have_gets_the_nearest(folder: Path) -> None:
    for name, attribute, hint in (
        ("Curiculum", "Curiculum", "core.did_you_mean(meant=Curriculum)"),
        ("Curriculum.Outer.X", "Outer", ""),
    ):
        with pytest.raises(ValueError) as raised:
            load_object("strategy", f"their_module:{name}")
        assert str(raised.value) == (
            f"core.plugin_attribute_missing(kind=strategy, address=their_module:{name},"
            f" file={folder / 'their_module.py'}, attribute={attribute}, hint={hint})"
        )


def test_a_text_that_is_no_address_explains_how_one_is_written() -> None:
    with pytest.raises(ValueError, match=r"plugin_address_invalid.*address=their_module:\)"):
        load_object("strategy", "their_module:")


def test_only_what_another_process_can_import_has_an_address() -> None:
    assert address_of(look_up) == "infrastructure.core.lookup:look_up"
    assert address_of(load_object("strategy", "their_module:Curriculum.Inner")) == (
        "their_module:Curriculum.Inner"
    )

    class Local: ...

    assert address_of(Local) is None
    assert address_of(lambda: None) is None
    assert address_of(3) is None
    in_a_notebook = type("Cell", (), {"__module__": "__main__"})
    assert address_of(in_a_notebook) is None
    hidden = type("look_up", (), {"__module__": "infrastructure.core.lookup"})
    assert address_of(hidden) is None, "that address is another object's"


def test_a_module_s_file_is_found_without_an_import(folder: Path) -> None:
    package = folder / "their_package"
    (package / "inner").mkdir(parents=True)
    for file in (package / "__init__.py", package / "inner/deep.py"):
        file.write_text("raise SystemExit('imported')")
    found = {name: source_file(name) for name in ("their_package", "their_package.inner.deep")}
    assert found == {
        "their_package": package / "__init__.py",
        "their_package.inner.deep": package / "inner/deep.py",
    }
    nothing = ("their_package.inner", "their_package.none", "no_such.module", "math", "sys")
    assert [*map(source_file, nothing)] == [None] * 5
    assert source_file("infrastructure.core.lookup") == Path(str(look_up.__code__.co_filename))
    assert module_file("their_package") is None, "the current folder is not in Python's path"
    for name, file in found.items():
        sys.path[:] = [entry for entry in sys.path if entry != str(folder)]
        look_in_folder_of(file, name)  # type: ignore[arg-type]
        look_in_folder_of(file, name)  # type: ignore[arg-type]
        assert (sys.path[-1], sys.path.count(str(folder))) == (str(folder), 1)
    assert module_file("their_package") == package / "__init__.py"
    (package / "__init__.py").unlink()
    importlib.invalidate_caches()
    assert module_file("their_package") == package  # a package without a file
    assert [*map(module_file, ("no_such.module", "no_such", "sys"))] == [None] * 3
