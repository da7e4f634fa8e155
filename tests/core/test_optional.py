"""A missing optional package is told with its pip line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.core import optional
from infrastructure.core.errors import MissingPackageError
from infrastructure.core.optional import import_without, is_installed, require

ROOT = Path(__file__).resolve().parents[2]


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
        "core.package_not_installed(needed_for=reading it, package=no_such_package,"
        " command=pip install no-such-package==1)"
    )
    assert not is_installed("no_such_package")


def test_a_package_is_imported_without_another_that_it_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "try:\n    import optional_part\nexcept ImportError:\n    optional_part = None\n"
    (tmp_path / "whole.py").write_text(source)
    (tmp_path / "optional_part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import_without("whole", "optional_part")
    assert sys.modules["whole"].optional_part is None
    assert require("optional_part", "tests").__name__ == "optional_part"
    import_without("no_such_package", "json")
    del sys.modules["whole"]
    import_without("whole", "optional_part")  # which is there already: left as it is
    assert "whole" not in sys.modules
    del sys.modules["optional_part"]


def test_the_quantum_layer_does_without_networkx() -> None:
    names = "'dimod' in sys.modules, 'networkx' in sys.modules"
    package = "infrastructure.features.quantum.solving"
    code = f"import {package}, sys; sys.exit(({names}) != (True, False))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
