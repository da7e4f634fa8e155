"""Writes `quantum.json` into a run directory: every quantum step so far, for the report and for
whoever looks on."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from infrastructure.core.checksums import write_record
from infrastructure.monitoring.records.run_reader import QUANTUM_FILE
from infrastructure.monitoring.training_monitor import Probe
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook, Observer

if TYPE_CHECKING:  # dimod would come with them, into trainings that have no quantum step
    from infrastructure.training.quantum.quantum_extension import QuantumExtension
    from infrastructure.training.quantum.solver_session import SolverSession
    from infrastructure.training.quantum.step_records import Record

log = logging.getLogger(__name__)


class QuantumRecords(Observer):
    """Follows a session; what that forgets in a rollback, the file forgets too."""

    def __init__(self, run_directory: Path, session: "SolverSession") -> None:
        self.path, self.session = run_directory / QUANTUM_FILE, session
        self._written: list[str] = []

    def train_start(self, state: TrainingState) -> None:
        self._write()

    def epoch_start(self, state: TrainingState) -> None:
        self._write()

    def step_start(self, state: TrainingState) -> None:
        self._write()

    def step_end(self, state: TrainingState) -> None:
        self._write()

    def train_end(self, state: TrainingState) -> None:
        self._write()

    def _write(self) -> None:
        texts = self.session.history.state_dict()
        if texts == self._written:
            return
        self._written = texts
        try:
            write_record(self.path, quantum_facts(self.session))
        except OSError as error:  # to look at only: the training has it in its checkpoints
            log.warning("%s is not complete: %s", self.path, error)


class QuantumFacts(TypedDict):
    """What `quantum.json` holds."""

    problem: str
    answer: str
    solver: str
    records: "list[Record]"


def quantum_facts(session: "SolverSession") -> QuantumFacts:
    """All quantum steps of a training, as JSON values."""
    config = session.config
    return {
        "problem": config.problem,
        "answer": config.answer,
        "solver": session.config.solver,
        "records": session.history.records(),
    }


def quantum_extension_of(hooks: list[Hook]) -> "QuantumExtension | None":
    """The quantum step among the hooks of a training; None where there is none.

    There is none as long as nobody has loaded its module, and looking for it loads nothing.
    """
    module = sys.modules.get("infrastructure.training.quantum.quantum_extension")
    if module is None:
        return None
    return next((hook for hook in hooks if isinstance(hook, module.QuantumExtension)), None)


def quantum_observers(
    run_directory: Path, hooks: list[Hook], report: Callable[[str], None]
) -> list[Hook]:
    """What writes down the quantum steps of a training, if it makes any, which are told to `report`
    from now on."""
    extension = quantum_extension_of(hooks)
    if extension is None:
        return []
    extension.session.report = report
    return [QuantumRecords(run_directory, extension.session)]


def quantum_probes(hooks: list[Hook]) -> dict[str, Probe]:
    """What the monitor samples of quantum steps: the newest one's solver time, if there is any."""
    extension = quantum_extension_of(hooks)
    if extension is None:
        return {}
    return {"quantum_solver_seconds": lambda: extension.session.solver_seconds}
