"""Which versions of a store stay."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infrastructure.backup.format.manifest import Outline, scores_of
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError, InputError

if TYPE_CHECKING:  # the processes that write and copy begin twice as fast without Pydantic
    from infrastructure.config.sections.training_config import TrainingConfig


@dataclass(frozen=True)
class Retention:
    """What rotation leaves; the newest emergency version stays besides.

    Attributes:
        keep_last: newest versions; at least 2.
        keep_best: versions with the lowest score.
        keep_every: versions whose step is a multiple of this; None: none of these.

    Raises:
        ValueError: `keep_last` is below 2.
    """

    keep_last: int = 2
    keep_best: int = 0
    keep_every: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 2:
            raise InputError("backup.too_few_checkpoints_kept", count=self.keep_last)


def retention_of(training: "TrainingConfig") -> Retention:
    """What rotation leaves on this machine."""
    return Retention(training.keep_checkpoints, training.num_best_kept, training.keep_every)


def versions_to_keep(store: Store, retention: Retention) -> set[str]:
    """The newest healthy versions of `keep_last` different steps that verify, what is newer than
    the oldest of them (evidence of damage or of a loss that was not finite), and what else the
    policy names.

    While fewer than `keep_last` verify, everything stays: nothing is removed on the strength of a
    version that might not load.
    """
    names = store.versions()
    verified_steps: set[int] = set()  # going back, or being stopped, saves one step twice
    for number, name in enumerate(names, start=1):
        if is_good(store, name):
            verified_steps.add(store.outline(name).step)
        if len(verified_steps) == retention.keep_last:
            readable = {older: manifest for older in names if (manifest := _read(store, older))}
            return {*names[:number], *_worth_keeping(store, retention, readable)}
    return set(names)


def is_good(store: Store, name: str) -> bool:
    """Whether a version is healthy and whole; what was verified before is not read again."""
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
    yield from itertools.islice(best, retention.keep_best)  # each one asked for is read whole
    if retention.keep_every is not None:
        of_step = {m.step: name for name, m in reversed(healthy.items())}
        yield from (
            name for step, name in of_step.items() if step and step % retention.keep_every == 0
        )
    yield from [name for name, m in healthy.items() if m.kind == "emergency"][:1]


def _read(store: Store, name: str) -> Outline | None:
    try:
        return store.outline(name)
    except CheckpointError:
        return None
