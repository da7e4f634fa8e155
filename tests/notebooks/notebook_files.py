"""The project's notebooks, and how a test runs one as a person would: in a folder of its own."""

import importlib.metadata
import json
import os
import shutil
from pathlib import Path
from typing import Any

from infrastructure.core.optional import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OWN_VARIABLES = {
    # So long that it can be killed in its middle; the preset's six steps are over too soon.
    "02_continue_after_disconnect": {
        "TEMPER_TRAINING__MAX_STEPS": "90",
        "TEMPER_TRAINING__VALIDATION_FREQUENCY": "15",
    },
    # Phases are epochs long: of large batches, so that two phases are few steps.
    "04_stackwise": {
        "TEMPER_TRAINING__NUM_EPOCHS": "1",
        "TEMPER_TRAINING__BATCH_SIZE": "1000",
        "TEMPER_TRAINING__MAX_STEPS": "16",
    },
    # The time that a compiler takes belongs to no test of a notebook.
    "05_watch_and_tune": {"TEMPER_TRAINING__COMPILE_MODE": "none"},
}


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def cells_of(path: Path, kind: str = "code") -> list[dict[str, Any]]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == kind]


def text_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def assertions_of(cell: dict[str, Any]) -> list[str]:
    """The lines that nbmake executes after the cell."""
    return list(cell["metadata"].get("nbmake", {}).get("post_cell_execute", []))


def copy_into(folder: Path, notebook: Path) -> Path:
    """A copy, so that nothing is written beside the project's own."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(notebook, folder))


def variables(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a kernel that runs a notebook small, and leaves everything in `folder`.

    A checkout that is not installed is said to be, or the first cell would fetch another one.
    """
    return {
        "PYTHONPATH": os.pathsep.join([str(faked_installation(folder)), str(ROOT)]),
        "TEMPER_PRESET": "ci",
        "TEMPER_PLATFORM": "notebook",
        "TEMPER_CACHE__DIRECTORY": str(folder / "cache"),
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "ipython"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def variables_of(notebook: Path, folder: Path) -> dict[str, str]:
    """`variables` for one of the project's notebooks."""
    return variables(folder, **OWN_VARIABLES.get(notebook.stem, {}))


def faked_installation(folder: Path) -> Path:
    """A folder to put on the path; it holds temper's metadata where no other does."""
    path = folder / "packages"
    installed = importlib.metadata.distributions(name=DISTRIBUTION)
    if any(found.read_text("RECORD") for found in installed):
        return path
    metadata = path / "temper_train-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: temper-train\nVersion: 0\n")
    (metadata / "RECORD").write_text("temper_train-0.dist-info/RECORD,,\n")
    return path
