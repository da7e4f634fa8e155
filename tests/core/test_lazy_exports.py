import sys
import types

import pytest

from infrastructure.core.lazy_exports import lazy_names


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("some_package")
    places = {"OrderedDict": "collections"}
    monkeypatch.setattr(
        module,
        "__getattr__",
        lazy_names("some_package", places, elsewhere={"Other": "use OrderedDict"}),
        raising=False,
    )
    monkeypatch.setitem(sys.modules, "some_package", module)
    return "some_package"


def test_a_name_is_what_its_module_has(package: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {package} import OrderedDict", names)
    assert names["OrderedDict"] is __import__("collections").OrderedDict


def test_a_name_that_is_elsewhere_is_explained(package: str) -> None:
    with pytest.raises(ImportError, match=r"name_does_not_exist\(name=Other, instead=use Ord"):
        exec(f"from {package} import Other")


def test_a_name_that_there_is_not_is_like_any_other(package: str) -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {package} import nothing")
    assert not hasattr(sys.modules[package], "nothing")
