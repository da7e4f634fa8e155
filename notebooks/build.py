"""Makes `notebooks/*.ipynb` from `notebooks/src/*.py`, which are the only files to edit.

    python -m notebooks.build            # what `make notebooks` does
    python -m notebooks.build --check    # only tells which are not what their source says

A source is in jupytext's percent format. What a notebook needs besides (kernel, numbered cell ids)
is added here, the same for all, so that the same source always gives the same bytes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).resolve().parent
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
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02}"
    metadata = {key: value for key, value in notebook.metadata.items() if key != "jupytext"}
    notebook.metadata = nbformat.from_dict({**metadata, "kernelspec": KERNEL})
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def outdated() -> list[Path]:
    """Notebooks that are not what their source says, or have none."""
    made = {target_of(source): notebook_of(source) for source in sources()}
    differing = [path for path, text in made.items() if not _holds(path, text)]
    return sorted([*differing, *(set(FOLDER.glob("*.ipynb")) - set(made))])


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
    for source in sources():
        target_of(source).write_text(notebook_of(source), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
