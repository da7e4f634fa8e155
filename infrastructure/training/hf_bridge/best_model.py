"""The files of the best model so far, which `load_best_model_at_end` loads.

Each checkpoint contains these files, so that they are also available on another machine.
"""

import logging
from pathlib import Path

import torch

from infrastructure.backup.state.optimizer_state import Tensors
from infrastructure.core.files import make_directory
from infrastructure.core.messages import phrase

BEST = "best"  # the class of its files in a version, and their folder
NAMES = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json")

log = logging.getLogger(__name__)


def best_files(folder: str | None) -> Tensors:
    """Return the weight files in the Trainer's best-model folder as bytes, by relative path.

    Args:
        folder: `TrainerState.best_model_checkpoint`; None: there is no best model yet.
    """
    if folder is None:
        return {}
    root = Path(folder)
    files = sorted({path for name in NAMES for path in root.rglob(name) if path.stat().st_size})
    if not any(path.suffix == ".safetensors" for path in files):
        log.warning(phrase("trainer.best_model_without_weights", folder=folder))
        return {}
    return {path.relative_to(root).as_posix(): _bytes_of(path) for path in files}


def _bytes_of(path: Path) -> torch.Tensor:
    return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)


def write_best(files: Tensors, folder: Path) -> None:
    """Write the files that `best_files` returned to `folder`.

    Raises:
        OSError: the disk returns an error.
    """
    for name, content in files.items():
        path = folder / name
        make_directory(path.parent)
        path.write_bytes(content.numpy().tobytes())
