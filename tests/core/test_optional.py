"""A missing optional package is told with its pip line."""

import json

import pytest

from infrastructure.core import optional
from infrastructure.core.errors import MissingPackageError
from infrastructure.core.optional import is_installed, require


def test_an_installed_package_is_imported() -> None:
    assert require("json", "tests") is json
    assert is_installed("json")


def test_a_missing_package_is_named_with_its_use_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(optional.PIP_LINES, "no_such_package", "pip install no-such-package==1")
    with pytest.raises(MissingPackageError) as caught:
        require("no_such_package.inner", "reading it")
    assert str(caught.value) == (
        "reading it needs the package no_such_package: pip install no-such-package==1"
    )
    assert not is_installed("no_such_package")
