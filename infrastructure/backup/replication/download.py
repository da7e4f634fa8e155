"""Downloading a checkpoint from a backup destination to this machine."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.object_reader import Progress
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.upload import fetch_version
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase

T = TypeVar("T")
NUM_ATTEMPTS = 6
NUM_LOOKS = 2  # for a file that seems to be missing
FIRST_WAIT_SECONDS = 0.5

log = logging.getLogger(__name__)


def fetch_newest(
    link: RemoteSession,
    local: Store,
    step: int | None,
    on_progress: Progress,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Fetch the newest healthy checkpoint at the destination, or the checkpoint of `step`, into
    `local`.

    A damaged checkpoint is skipped with a warning. A checkpoint that cannot be read at the moment
    is not skipped, because resuming from an older one would lose work. Reading is retried. If it
    still fails, the destination counts as unreachable.

    Returns:
        The name of the checkpoint.

    Raises:
        CheckpointError: if there is no such checkpoint.
        StorageError: if the destination does not respond, or the local disk fails.
    """
    damage: list[str] = []
    for name in _listed(link, sleep):
        try:
            if _fetch(link, name, local, step, on_progress, sleep):
                return name
        except CheckpointError as error:
            damage.append(f"{name[:12]}: {error}")
            log.warning(
                phrase("backup.skips_damaged_checkpoint", url=link.place.url, damage=damage[-1])
            )
    details = "".join(f"; {text}" for text in damage)
    about = {"url": link.place.url, "run_id": link.run_id, "details": details}
    if step is None:
        raise CheckpointError("backup.no_intact_checkpoint", **about)
    raise CheckpointError("backup.no_intact_checkpoint_of_step", step=step, **about)


def _listed(link: RemoteSession, sleep: Callable[[float], None]) -> list[str]:
    names = _retrying(link, link.store.versions, sleep)
    if not names:  # on a mount, this does not prove that there are none
        sleep(FIRST_WAIT_SECONDS)
        names = _retrying(link, link.store.versions, sleep)
    return names


def _fetch(
    link: RemoteSession,
    name: str,
    local: Store,
    step: int | None,
    on_progress: Progress,
    sleep: Callable[[float], None],
) -> bool:
    """Fetch a checkpoint if it is the requested kind. Return whether it was fetched.

    If `step` is None, any healthy checkpoint is requested; otherwise any checkpoint of this step.
    """
    manifest = _retrying(link, lambda: link.store.read(name), sleep)
    if manifest.step != step if step is not None else not manifest.healthy:
        return False
    try:
        _retrying(link, lambda: fetch_version(link.store, name, local, on_progress), sleep)
    except CheckpointError as error:
        _retrying(
            link,
            lambda: fetch_version(link.store, name, local, on_progress, run_files=False),
            sleep,
        )
        log.warning(phrase("backup.remote_run_files_damaged", url=link.place.url, error=error))
    return True


def _retrying(link: RemoteSession, action: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """Return the result of `action`. Retry while the destination does not respond."""
    for attempt in range(NUM_ATTEMPTS):
        try:
            return action()
        except (OSError, CheckpointError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            is_missing = isinstance(cause, FileNotFoundError)
            if not isinstance(cause, OSError) or (is_missing and attempt >= NUM_LOOKS):
                raise
            advice = link.place.advice(cause)
            problem = phrase(
                "run.destination_not_responding", url=link.place.url, reason=cause, advice=advice
            )
        sleep(FIRST_WAIT_SECONDS * 2**attempt)
    raise StorageError(problem)
