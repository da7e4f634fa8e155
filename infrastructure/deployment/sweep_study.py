"""The journal of a sweep: what Optuna knows of its trials, in one file of JSON lines.

    <sweep>/sweep.json     what is searched, and by what (with a checksum)
           /journal.jsonl  Optuna's JournalStorage: every draw, every report, every result

The journal is only added to, each line is on the disk before anybody acts by it, and nothing in it
is pickled. It is read by the sweep and by the trial that trains. Loads no torch.
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
# Of a trial's journal.
PRUNED, RUN, SECONDS, REASON, SAME_AS = "pruned", "run", "seconds", "reason", "same_as"
BEGAN = "began"  # when its process was started whose time is not counted yet, in Unix time


@dataclass(frozen=True)
class Goal:
    """What a sweep looks for, and how.

    Attributes:
        metric: what an evaluation calls the number that decides.
        direction: minimize or maximize.
        sampler: draws the values: one of SAMPLERS.
        pruner: ends a trial that is behind the others: one of PRUNERS.
    """

    metric: str = "eval_loss"
    direction: str = "minimize"
    sampler: str = "tpe"
    pruner: str = "median"

    @property
    def title(self) -> str:
        """What people call the metric."""
        name = name_of(self.metric).title
        return HELD_OUT_LOSS if self.metric == "eval_loss" else name

    def to_dict(self) -> dict[str, str]:
        """Ready for JSON."""
        return asdict(self)

    def make_sampler(self, seed: int, number: int) -> "BaseSampler":
        """What draws trial `number`. Made anew for each, from its number alone, so that a sweep
        that was killed draws what it would have drawn."""
        optuna = require("optuna", "temper sweep")
        seed_here = (seed * 1_000_003 + number) % (1 << 32)
        if self.sampler == "tpe":
            return cast("BaseSampler", optuna.samplers.TPESampler(seed=seed_here))
        return cast("BaseSampler", optuna.samplers.RandomSampler(seed=seed_here))

    def make_pruner(self) -> "BasePruner":
        """What is asked after each evaluation of a trial."""
        optuna = require("optuna", "temper sweep")
        pruners: dict[str, Any] = {
            "median": optuna.pruners.MedianPruner,
            "halving": optuna.pruners.SuccessiveHalvingPruner,
            "hyperband": optuna.pruners.HyperbandPruner,
            "none": optuna.pruners.NopPruner,
        }
        return cast("BasePruner", pruners[self.pruner]())


class _JournalLock:
    """Optuna's lock, by the kernel: nothing of a killed process stands in the way of the next. Its
    own ones leave a file behind that is waited for."""

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
    """The study in a sweep's folder, made where there is none.

    Args:
        number: of the trial that it is to draw; None: it draws none.

    Raises:
        MissingPackageError: Optuna is not installed.
        ValueError: the journal was damaged.
    """
    optuna = require("optuna", "temper sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # what there is to say, the sweep says
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
        raise InputError("deployment.sweep_journal_unreadable", path=path, error=error) from error


def mend_journal(folder: Path) -> None:
    """Take away the half line that a power cut has left at the end; nobody has acted by it. Only
    where no process of the sweep lives."""
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
