"""The journal of a sweep: Optuna's record of its trials, in one file of JSON lines.

    <sweep>/sweep.json     what is searched, and how (with a checksum)
           /journal.jsonl  Optuna's JournalStorage: all suggestions, reports and results

The journal is append-only. Each line is on disk before anything depends on it. The journal
contains no pickled data. The sweep and the process of the current trial both use it. This module
does not load torch.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from infrastructure.core.errors import InputError
from infrastructure.core.lock import Lock
from infrastructure.core.optional import require
from infrastructure.monitoring.drawing.quantity_names import name_of
from infrastructure.monitoring.drawing.tables import HELD_OUT_LOSS

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study

RECORD_NAME, JOURNAL_NAME, JOURNAL_LOCK = "sweep.json", "journal.jsonl", "journal.lock"
STUDY_NAME = "sweep"
SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "halving", "hyperband", "none")
# User attributes of a trial.
PRUNED, RUN, SECONDS, REASON, SAME_AS = "pruned", "run", "seconds", "reason", "same_as"


@dataclass(frozen=True)
class Goal:
    """The metric that a sweep optimizes, and its search methods.

    Attributes:
        metric: the name of the metric in evaluations.
        direction: minimize or maximize.
        sampler: the method that suggests values, one of SAMPLERS.
        pruner: the method that stops trials which are worse than others, one of PRUNERS.
    """

    metric: str = "eval_loss"
    direction: str = "minimize"
    sampler: str = "tpe"
    pruner: str = "median"

    @property
    def title(self) -> str:
        """The display name of the metric."""
        name = name_of(self.metric).title
        return HELD_OUT_LOSS if self.metric == "eval_loss" else name

    def to_dict(self) -> dict[str, str]:
        """Return the goal as values for JSON."""
        return asdict(self)

    def make_sampler(self, seed: int, number: int) -> "BaseSampler":
        """Create the sampler that suggests the values of trial `number`.

        The sampler depends only on the seed and the number, so a resumed sweep suggests the same
        values again.
        """
        optuna = require("optuna", "temper sweep")
        seed_here = (seed * 1_000_003 + number) % (1 << 32)
        if self.sampler == "tpe":
            return cast("BaseSampler", optuna.samplers.TPESampler(seed=seed_here))
        return cast("BaseSampler", optuna.samplers.RandomSampler(seed=seed_here))

    def make_pruner(self) -> "BasePruner":
        """Create the pruner, which decides after each evaluation whether a trial is stopped."""
        optuna = require("optuna", "temper sweep")
        pruners: dict[str, Any] = {
            "median": optuna.pruners.MedianPruner,
            "halving": optuna.pruners.SuccessiveHalvingPruner,
            "hyperband": optuna.pruners.HyperbandPruner,
            "none": optuna.pruners.NopPruner,
        }
        return cast("BasePruner", pruners[self.pruner]())


class _JournalLock:
    """A lock for Optuna's journal that the kernel releases if its process is killed.

    Optuna's own locks leave a file behind that would block the next process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    def acquire(self) -> bool:
        self._lock = Lock(self.path)
        return self._lock.take()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def open_study(folder: Path, goal: Goal, seed: int = 0, number: int | None = None) -> "Study":
    """Open the study in a sweep's folder; if it does not exist, create it.

    Args:
        number: the number of the trial for which to suggest values, or None to suggest none.

    Raises:
        MissingPackageError: if Optuna is not installed.
        ValueError: if the journal is damaged.
    """
    optuna = require("optuna", "temper sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints its own messages
    path = folder / JOURNAL_NAME
    backend = optuna.storages.journal.JournalFileBackend(
        str(path), lock_obj=_JournalLock(folder / JOURNAL_LOCK)
    )
    sampler = goal.make_sampler(seed, number) if number is not None else None
    try:
        return cast(
            "Study",
            optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name=STUDY_NAME,
                direction=goal.direction,
                sampler=sampler or optuna.samplers.RandomSampler(),
                pruner=goal.make_pruner(),
                load_if_exists=True,
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("sweep.journal_unreadable", path=path, error=error) from error


def mend_journal(folder: Path) -> None:
    """Remove an incomplete last line, as a power failure leaves it, from the journal.

    No data is lost, because nothing depends on a line before it is complete. Call this only while
    no process of the sweep is running.
    """
    path = folder / JOURNAL_NAME
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
            file.flush()
            os.fsync(file.fileno())
