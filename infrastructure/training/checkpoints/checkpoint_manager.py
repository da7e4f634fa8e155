"""Checkpoints as atomic directories: whole and verified, or not there.

    checkpoints/step-00000120/{model,optimizer,random}.safetensors · state.json · manifest.json

The manifest holds the size and SHA-256 of every other file and is written last, inside a directory
that gets its name only when all of it is on the disk. Reading verifies; a damaged checkpoint is
skipped with a warning and the one before it serves. One writer per run.
"""

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from infrastructure.core.errors import CheckpointError
from infrastructure.core.files import file_sha256, whole_directory, write_json
from infrastructure.training.checkpoints.snapshot import Snapshot

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
VALUES = "state.json"
NAME = re.compile(r"step-(\d{8,})")

log = logging.getLogger(__name__)


class CheckpointManager:
    """Saves, lists, verifies, loads and prunes the checkpoints of one run.

    Args:
        directory: the run's `checkpoints` folder.
        keep: newest checkpoints that rotation leaves; at least 2.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(
                f"keep_checkpoints={keep}: keep at least 2, since the newest may be the damaged one"
            )
        self.directory = directory
        self.keep = keep

    def save(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint, then remove those that rotation no longer keeps.

        Raises:
            OSError: the disk refuses; what was saved before is untouched.
        """
        target = self.directory / f"step-{snapshot.values['step']:08d}"
        with whole_directory(target) as part:
            write_checkpoint(part, snapshot)
        self._rotate()
        return target

    def checkpoints(self) -> list[Path]:
        """All checkpoints, the oldest first, verified or not."""
        if not self.directory.is_dir():
            return []
        found = [path for path in self.directory.iterdir() if NAME.fullmatch(path.name)]
        return sorted(found, key=step_of)

    def newest(self) -> Path:
        """The newest checkpoint that verifies; damaged newer ones are named in a warning.

        Raises:
            CheckpointError: there is none.
        """
        damage = []
        for path in reversed(self.checkpoints()):
            try:
                verify(path)
                return path
            except CheckpointError as error:
                damage.append(str(error))
                log.warning("skipping a damaged checkpoint: %s", error)
        reason = "; ".join(damage) if damage else "no checkpoint was saved yet"
        raise CheckpointError(
            f"nothing to resume from in {self.directory}: {reason}; start a new run, with a smaller"
            " checkpoint_frequency where runs do not live long"
        )

    def _rotate(self) -> None:
        for path in self.checkpoints()[: -self.keep]:
            shutil.rmtree(path)
        for leftover in self.directory.glob(".step-*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint directory's name."""
    match = NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def write_checkpoint(directory: Path, snapshot: Snapshot) -> None:
    """Write all files of a checkpoint into an existing directory, the manifest last."""
    for group, tensors in snapshot.tensors.items():
        path = directory / f"{group}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    write_json(directory / VALUES, snapshot.values)
    files = {
        path.name: {"size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(directory.iterdir())
    }
    write_json(directory / MANIFEST, {"format": FORMAT_VERSION, "files": files})


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint directory.

    Raises:
        CheckpointError: it is missing, unreadable or of an unknown format.
    """
    path = checkpoint / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        format_version, files = manifest["format"], manifest["files"]
    except FileNotFoundError as error:
        raise CheckpointError(f"{checkpoint} is no checkpoint: it has no {MANIFEST}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"{checkpoint} has checkpoint format {format_version}; this version of temper reads"
            f" format {FORMAT_VERSION}"
        )
    if not isinstance(files, dict) or not files or any("/" in name for name in files):
        raise CheckpointError(f"{path} lists no files of this directory")
    return dict(files)


def verify(checkpoint: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointError: a file is missing or its bytes are not those that were written.
    """
    for name, expected in read_manifest(checkpoint).items():
        path = checkpoint / name
        if not path.is_file():
            raise CheckpointError(f"{checkpoint}: {name} is missing")
        if path.stat().st_size != expected["size_bytes"]:
            raise CheckpointError(f"{checkpoint}: {name} is cut or grown")
        if file_sha256(path) != expected["sha256"]:
            raise CheckpointError(f"{checkpoint}: the bytes of {name} have changed")


def load_checkpoint(checkpoint: Path) -> Snapshot:
    """Read a checkpoint after verifying it; tensors are on the CPU.

    Raises:
        CheckpointError: it is damaged.
    """
    verify(checkpoint)
    values = json.loads((checkpoint / VALUES).read_text())
    tensors: dict[str, dict[str, torch.Tensor]] = {
        path.stem: load_file(path) for path in sorted(checkpoint.glob("*.safetensors"))
    }
    return Snapshot(tensors, values)
