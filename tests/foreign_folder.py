"""A folder of somebody else, whose files are named like everything that a program may import."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("infrastructure", "colab", "tests", "yaml", "utils")
THIRD_PARTY = (
    *("torch", "numpy", "psutil", "dimod", "blake3", "zstandard", "fsspec", "safetensors", "tqdm"),
    *("transformers", "tokenizers", "pydantic", "packaging", "huggingface_hub", "httpx", "rich"),
)
IS_MINE = "a file of the user was imported"

# What a notebook's kernel does: it starts elsewhere, then looks into the notebook's folder first.
NOTEBOOK = "import sys; sys.path.insert(0, '')\n"


def foreign_folder(folder: Path) -> Path:
    """Fill `folder`; importing anything from it fails with a sentence."""
    folder.mkdir(exist_ok=True)
    text = f"raise RuntimeError({IS_MINE!r} + ': ' + __name__)\n"
    standard = [name for name in sys.stdlib_module_names if find_spec(name) is not None]
    for name in (*standard, *THIRD_PARTY):  # not those of another system, which are tried for
        (folder / f"{name}.py").write_text(text)
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    return folder


def python_there(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in `folder` as a program does that was installed: the folder is not looked into."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
