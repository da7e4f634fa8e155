"""Makes `notebooks/*.ipynb` from `notebooks/src/*.py`, which are the only files to edit.

    python -m notebooks.build            # what `make notebooks` does
    python -m notebooks.build --check    # only tells which are not what their source says

A source is in jupytext's percent format. What a notebook needs besides (kernel, numbered cell ids,
its badge, the cell that installs) is added here, the same for all, so that the same source always
gives the same bytes. Address and version are those of pyproject.toml and stand nowhere else; where
a page links to Colab, the address is written here, too.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).resolve().parent
PROJECT = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
REPOSITORY, VERSION = PROJECT["urls"]["Repository"], PROJECT["version"]
COLAB = "https://colab.research.google.com"
OPENED = f"{COLAB}/{REPOSITORY.removeprefix('https://').replace('.com/', '/')}/blob/main/notebooks/"
LINK_TO_COLAB = re.compile(rf"{COLAB}/github/[^/\s]+/[^/\s]+/blob/[^/\s]+/notebooks/")
PAGES = ("README.md", "docs/colab.md")  # that link to notebooks on Colab
INSTALLS = "install"  # the tag of the cell that becomes all of INSTALL_CELL
INSTALL_CELL = FOLDER / "install_cell.py"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def sources() -> list[Path]:
    """The sources, in the order of their numbers."""
    return sorted((FOLDER / "src").glob("*.py"))


def target_of(source: Path) -> Path:
    """Where the notebook of a source lies."""
    return FOLDER / f"{source.stem}.ipynb"


def notebook_of(source: Path) -> str:
    """The notebook that a source makes, as the text of its file."""
    notebook = jupytext.read(source, fmt="py:percent")
    badge = f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({OPENED}{target_of(source).name})"
    notebook.cells[0]["source"] = f"{badge}\n\n{notebook.cells[0]['source']}"
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02}"
        if INSTALLS in cell["metadata"].get("tags", []):
            cell["source"] = install_cell()
    metadata = {key: value for key, value in notebook.metadata.items() if key != "jupytext"}
    notebook.metadata = nbformat.from_dict({**metadata, "kernelspec": KERNEL})
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def install_cell() -> str:
    """The code of the cell that installs, with this version and address."""
    text = INSTALL_CELL.read_text(encoding="utf-8").rstrip("\n")
    return text.replace("{version}", VERSION).replace("{repository}", REPOSITORY)


def made() -> Mapping[Path, str]:
    """Every file that is made or rewritten here, as it has to be."""
    notebooks = {target_of(source): notebook_of(source) for source in sources()}
    pages = [path for name in PAGES if (path := FOLDER.parent / name).is_file()]
    return notebooks | {
        page: LINK_TO_COLAB.sub(OPENED, page.read_text(encoding="utf-8")) for page in pages
    }


def outdated() -> list[Path]:
    """Notebooks that are not what their source says, or have none; pages with another address."""
    texts = made()
    differing = [path for path, text in texts.items() if not _holds(path, text)]
    return sorted([*differing, *(set(FOLDER.glob("*.ipynb")) - set(texts))])


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str] | None = None) -> int:
    """Make them; with --check, 1 if one is not what its source says."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only tell")
    if parser.parse_args(arguments).check:
        paths = outdated()
        for path in paths:
            print(f"{path.name} is not what its source says: make notebooks", file=sys.stderr)
        return int(bool(paths))
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
