"""The choice of the checkpoints that a store keeps."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infrastructure.backup.format.manifest import Outline, scores_of
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError, InputError

if TYPE_CHECKING:  # the writer and the copier start twice as fast without Pydantic
    from infrastructure.config.sections.training_config import TrainingConfig


@dataclass(frozen=True)
class Retention:
    """Rules that determine which checkpoints to keep. The newest emergency checkpoint is always
    kept.

    Attributes:
        keep_last: the number of newest checkpoints to keep; at least 2.
        keep_best: the number of checkpoints with the lowest score to keep.

    Raises:
        ValueError: if `keep_last` is below 2.
    """

    keep_last: int = 2
    keep_best: int = 0

    def __post_init__(self) -> None:
        if self.keep_last < 2:
            raise InputError("backup.too_few_checkpoints_kept", count=self.keep_last)


def retention_of(training: "TrainingConfig") -> Retention:
    """Return the rules for keeping checkpoints on this machine, from the section `training`."""
    return Retention(training.keep_checkpoints, training.num_best_kept)


def versions_to_keep(store: Store, retention: Retention) -> set[str]:
    """Return the names of the checkpoints to keep.

    The newest intact and healthy checkpoints of `keep_last` different steps are kept. Every
    checkpoint that is newer than the oldest of these is kept too, even if it is damaged or its loss
    was not finite. Then the other rules of `retention` are applied.

    If there are fewer than `keep_last` such steps, everything is kept, because the newer
    checkpoints might not load.
    """
    names = store.versions()
    verified_steps: set[int] = set()  # a step is saved twice after a rollback or a stop
    for number, name in enumerate(names, start=1):
        if is_good(store, name):
            verified_steps.add(store.outline(name).step)
        if len(verified_steps) == retention.keep_last:
            readable = {older: manifest for older in names if (manifest := _read(store, older))}
            return {*names[:number], *_worth_keeping(store, retention, readable)}
    return set(names)


def is_good(store: Store, name: str) -> bool:
    """Return whether a checkpoint is healthy and intact.

    Objects that were verified are not read again.
    """
    manifest = _read(store, name)
    return manifest is not None and (
        manifest.healthy
        and all(store.objects.is_whole(pack, manifest.hash_name) for pack in manifest.needed_packs)
    )


def _worth_keeping(
    store: Store, retention: Retention, manifests: dict[str, Outline]
) -> Iterable[str]:
    healthy = {name: manifest for name, manifest in manifests.items() if manifest.healthy}
    scored = scores_of(manifests)
    best = (name for name in sorted(scored, key=lambda n: (scored[n], n)) if is_good(store, name))
    yield from itertools.islice(best, retention.keep_best)  # each candidate is read completely
    yield from [name for name, m in healthy.items() if m.kind == "emergency"][:1]


def _read(store: Store, name: str) -> Outline | None:
    try:
        return store.outline(name)
    except CheckpointError:
        return None
