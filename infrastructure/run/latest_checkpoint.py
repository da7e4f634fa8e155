"""The newest checkpoint of a run on this machine, for monitoring. Loads no torch."""

from dataclasses import dataclass
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that is on the disk.

    Attributes:
        step: the number of completed optimizer steps.
        saved_at: the time when it was saved, in seconds since 1970.
    """

    step: int
    saved_at: float


class SavedSteps:
    """The checkpoints of a run, for repeated queries. Each manifest is read only once."""

    def __init__(self, run_path: Path) -> None:
        self.store = Store(run_path / "checkpoints")
        self._known: dict[str, SavedCheckpoint | None] = {}

    def newest(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint from which the run may resume.

        Return None if there is no such checkpoint, or if the folder cannot be read.
        """
        try:
            for name in self.store.versions():
                if name not in self._known:
                    self._known[name] = self._read(name)
                if (saved := self._known[name]) is not None:
                    return saved
        except OSError:  # what cannot be read is not shown
            return None
        return None

    def _read(self, name: str) -> SavedCheckpoint | None:
        try:
            manifest = self.store.read(name)
        except CheckpointError:  # it was rotated away or is damaged: use the one before it
            return None
        written_at = self.store.manifest_path(name).stat().st_mtime
        return SavedCheckpoint(manifest.step, written_at) if manifest.healthy else None
