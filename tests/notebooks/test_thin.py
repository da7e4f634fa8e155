"""Notebooks are made from their sources, thin, without outputs, and hold nothing secret.

What they do is in the package, where it is tested; a notebook says what and in which order.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser
from infrastructure.config.sources.flags import flags_given
from infrastructure.core.redact import redact
from notebooks import build
from tests.notebooks.notebook_files import NOTEBOOKS, assertions_of, cells_of, read, text_of

MAX_CELLS = MAX_LINES = 10
MAX_COLUMNS = 100
NAMES = [
    "00_quickstart",
    "01_finetune_your_data",
    "02_continue_after_disconnect",
    "03_quantum_step",
    "04_stackwise",
    "05_watch_and_tune",
    "06_your_own_trainer",
    "07_evaluate_and_export",
]
LONG = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While)
LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.Try, ast.With)
BADGE = build.OPENED
MAX_INSTALL_LINES = 25  # nothing of Temper is there yet, so it can be nowhere else
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_these_notebooks_are_there() -> None:
    assert set(NAMES) <= {path.stem for path in NOTEBOOKS}


def test_each_notebook_equals_its_source() -> None:
    assert build.outdated() == []


@EACH
def test_they_are_thin(path: Path) -> None:
    cells = cells_of(path)
    assert len(cells) <= MAX_CELLS
    for cell in cells[1:]:
        assert complaints(text_of(cell)) == []


def complaints(code: str) -> list[str]:
    """What makes a cell too thick; it must be plain Python: no magic, no shell."""
    lines = [line for line in code.splitlines() if line.strip()]
    found = [f"{len(lines)} lines"] if len(lines) > MAX_LINES else []
    found += [f"too wide: {line}" for line in lines if len(line) > MAX_COLUMNS]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, LONG + LOOPS):
            found.append(f"line {node.lineno}: {type(node).__name__}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("input", "files.upload"):
            found.append(f"line {node.lineno}: waits for a person")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    pass",
        "[x for x in y]",
        "while True:\n    pass",
        "input('name?')",
        "files.upload()",
        "x = 1\n" * (MAX_LINES + 1),
        f"x = '{'y' * MAX_COLUMNS}'",
    ],
)
def test_thick_cells_are_found(code: str) -> None:
    assert complaints(code)


@pytest.mark.parametrize("code", ["!pip install temper", "%pip install temper", "%%capture\nx = 1"])
def test_magic_is_found(code: str) -> None:
    """A failed `!pip` or `%pip` does not fail a notebook, so nothing may rest on one."""
    with pytest.raises(SyntaxError):
        complaints(code)


@EACH
def test_they_hold_no_output_and_no_secret(path: Path) -> None:
    notebook = read(path)
    assert notebook["metadata"].keys() <= {"kernelspec", "language_info", "accelerator", "colab"}
    for cell in cells_of(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    text = path.read_text(encoding="utf-8")
    assert redact(text) == text


@EACH
def test_they_open_from_a_badge_of_their_own(path: Path) -> None:
    title = text_of(cells_of(path, "markdown")[0])
    assert re.search(re.escape(f"({BADGE}{path.name})"), title)
    assert re.search(r"^# \S", title, re.MULTILINE)


@EACH
def test_links_between_them_lead_somewhere(path: Path) -> None:
    texts = [text_of(cell) for cell in cells_of(path, "markdown")]
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", "\n".join(texts))
    assert [name for name in linked if not (path.parent / name).is_file()] == []


def test_the_page_about_colab_shows_every_notebook() -> None:
    page = (build.FOLDER.parent / "docs/colab.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"{BADGE}{path.name}" not in page] == []


@EACH
def test_the_first_cell_installs_and_is_the_same_everywhere(path: Path) -> None:
    first = cells_of(path)[0]
    assert text_of(first) == text_of(cells_of(NOTEBOOKS[0])[0])
    assert text_of(first).endswith("import colab\n\ncolab.install()")
    lines = [line for line in text_of(first).splitlines() if line]
    assert len(lines) <= MAX_INSTALL_LINES
    assert max(map(len, lines)) <= MAX_COLUMNS


@EACH
def test_settings_stand_in_one_cell_that_tools_find(path: Path) -> None:
    tagged = [c for c in cells_of(path) if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    assert "# @param" in text_of(tagged[0])


@EACH
def test_running_them_asserts_something(path: Path) -> None:
    asserted = [line for cell in cells_of(path) for line in assertions_of(cell)]
    assert sum(line.startswith("assert ") for line in asserted) >= 3


# What makes them


def test_a_notebook_that_was_edited_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("# %% [markdown]\n# # A\n\n# %%\nx = 1\n")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert build.main(["--check"]) == 1
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    made = tmp_path / "a.ipynb"
    made.write_text(made.read_text().replace("x = 1", "x = 2"))
    (tmp_path / "left.ipynb").write_text("{}")
    capsys.readouterr()
    assert build.main(["--check"]) == 1
    output = capsys.readouterr().err
    assert "a.ipynb is not what its source says" in output
    assert "left.ipynb" in output


def test_the_address_stands_in_one_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of all that is tracked, what is made from pyproject.toml alone repeats it."""
    address = build.REPOSITORY.removeprefix("https://")
    done = subprocess.run(
        ["git", "grep", "--files-with-matches", "--fixed-strings", address.partition("/")[2]],
        cwd=build.FOLDER.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    made = {path.relative_to(build.FOLDER.parent).as_posix() for path in build.made()}
    assert set(done.stdout.split()) - made == {"pyproject.toml"}
    (tmp_path / "README.md").write_text(f"[Colab]({build.OPENED}a.ipynb)\n")
    (tmp_path / "notebooks/src").mkdir(parents=True)
    monkeypatch.setattr(build, "FOLDER", tmp_path / "notebooks")
    elsewhere = f"{build.COLAB}/github/me/mine/blob/main/notebooks/"
    monkeypatch.setattr(build, "OPENED", elsewhere)
    assert build.main(["--check"]) == 1
    assert build.main([]) == 0
    assert (tmp_path / "README.md").read_text() == f"[Colab]({elsewhere}a.ipynb)\n"


def test_the_command_for_a_terminal_names_the_preset_of_the_notebook(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [notebook] = [path for path in NOTEBOOKS if path.stem.startswith("05")]
    lines = [line for cell in cells_of(notebook) for line in text_of(cell).splitlines()]
    [command] = [line for line in lines if "temper train" in line]
    exec(command, {"preset": "thorough", "fastest": {"flags": "--num-workers 3"}})
    words = capsys.readouterr().out.split("temper ")[1].split()
    given = flags_given(create_parser().parse_args(words))
    assert given == {"--preset": "thorough", "--num-workers": "3"}
