"""The files that a module imports from its own folder are found in its source alone."""

from pathlib import Path

import pytest

from infrastructure.config.merging.own_imports import own_imports

FILES = {
    "flat.py": "import helper\nimport json, other\n",
    "helper.py": "def f():\n    from package.inner import deep\n",
    "other.py": "import flat\n",  # a circle
    "unused.py": "",
    "json.py": "",  # Python's own goes first
    "broken.py": "import helper\nthis is no Python\n",
    "lone.py": "import broken, numpy, not_there\n",
    "ours.py": "import temper_like\nimport helper2\n",
    "temper_like.py": "import unused\n",
    "helper2.py": "",
    "package/__init__.py": "from . import beside\n",
    "package/beside.py": "",
    "package/parts.py": "from .inner import deep as x\nfrom .inner.deep import name\n",
    "package/inner/__init__.py": "",
    "package/inner/deep.py": "from .. import beside\nfrom ..third import name\n",
    "package/third.py": "",
    "package/inner/single.py": "from . import deep\n",
}
INNER = ["package/__init__.py", "package/beside.py", "package/inner/__init__.py"]
DEEP = [*INNER, "package/inner/deep.py", "package/third.py"]


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("flat", ["helper.py", "other.py", *DEEP]),
        ("helper", DEEP),
        ("unused", []),
        ("broken", []),
        ("lone", ["broken.py"]),
        ("ours", ["helper2.py"]),
        ("package", ["package/beside.py"]),
        ("package.beside", []),
        ("package.parts", DEEP),
        ("package.inner.deep", ["package/__init__.py", "package/beside.py", "package/third.py"]),
        ("package.inner.single", DEEP),
        ("not_there", []),
    ],
)
def test_files_of_the_same_folder_are_found_directly_or_not(
    module: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    imports = own_imports(module, ("temper_like",))
    assert sorted(imports) == sorted(found)
    assert all(file == tmp_path / name for name, file in imports.items())
