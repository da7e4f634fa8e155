"""A checkpoint by the path of its manifest. Needs no torch."""

import logging
from pathlib import Path

from infrastructure.backup.format.manifest import VersionName, scores_of
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError

log = logging.getLogger(__name__)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` has the name and the place of a checkpoint's manifest."""
    return VersionName.parse(path.stem) is not None and path.parent.name == "versions"


def step_of(checkpoint: Path) -> int:
    """The optimizer steps that a checkpoint has behind it.

    Raises:
        CheckpointError: its manifest is damaged.
    """
    return store_of(checkpoint).read(checkpoint.stem).step


def by_step(store: Store) -> dict[int, Path]:
    """The newest readable checkpoint of every step that has one."""
    manifests: dict[int, Path] = {}
    for name in reversed(store.versions()):
        try:
            manifests[store.outline(name).step] = store.manifest_path(name)
        except CheckpointError as error:
            log.warning("skipping a damaged checkpoint: %s: %s", name, error)
    return manifests


def best_of(store: Store) -> Path | None:
    """The healthy checkpoint with the lowest score (see `training.best_metric`), of those that were
    measured on the held-out rows of the newest one; None: none has a score."""
    paths = by_step(store).values()
    scores = scores_of({path.stem: store.outline(path.stem) for path in paths})
    return min(((scores[p.stem], p) for p in paths if p.stem in scores), default=(0.0, None))[1]


def verify(checkpoint: Path) -> None:
    """Compare every byte of a checkpoint with what was written.

    Raises:
        CheckpointError: something is missing or has changed.
    """
    store = store_of(checkpoint)
    store.verify(store.read(checkpoint.stem), run_files=False)


def store_of(checkpoint: Path) -> Store:
    """The store that a checkpoint lies in."""
    return Store(checkpoint.resolve().parent.parent)
