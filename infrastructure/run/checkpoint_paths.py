"""Functions on checkpoints. A checkpoint is given by the path of its manifest file.

Loads no torch.
"""

import logging
from pathlib import Path

from infrastructure.backup.format.manifest import VersionName, scores_of
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase

log = logging.getLogger(__name__)


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` has the name and the location of a checkpoint's manifest."""
    return VersionName.parse(path.stem) is not None and path.parent.name == "versions"


def step_of(checkpoint: Path) -> int:
    """Return the number of completed optimizer steps of a checkpoint.

    Raises:
        CheckpointError: if its manifest is damaged.
    """
    return store_of(checkpoint).read(checkpoint.stem).step


def by_step(store: Store) -> dict[int, Path]:
    """Return the newest readable checkpoint of every step that has one."""
    manifests: dict[int, Path] = {}
    for name in reversed(store.versions()):
        try:
            manifests[store.outline(name).step] = store.manifest_path(name)
        except CheckpointError as error:
            damage = f"{name}: {error}"
            text = phrase("backup.skips_damaged_checkpoint", url=store.root, damage=damage)
            log.warning(text)
    return manifests


def best_of(store: Store) -> Path | None:
    """Return the healthy checkpoint with the lowest score (see `training.best_metric`).

    Only checkpoints with scores for the same held-out rows as the newest score are compared. Return
    None if no checkpoint has a score.
    """
    paths = by_step(store).values()
    scores = scores_of({path.stem: store.outline(path.stem) for path in paths})
    return min(((scores[p.stem], p) for p in paths if p.stem in scores), default=(0.0, None))[1]


def verify(checkpoint: Path) -> None:
    """Check that every byte of a checkpoint is as it was written.

    Raises:
        CheckpointError: if a part is missing or has changed.
    """
    store = store_of(checkpoint)
    store.verify(store.read(checkpoint.stem), run_files=False)


def store_of(checkpoint: Path) -> Store:
    """Return the store that contains a checkpoint."""
    return Store(checkpoint.resolve().parent.parent)
