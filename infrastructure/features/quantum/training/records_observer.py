"""The file `quantum.json` in a run directory, which lists all quantum steps for displays."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from infrastructure.core.checksums import write_record
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.records import QUANTUM_FILE
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

if TYPE_CHECKING:  # they import dimod, which runs without a quantum step do not need
    from infrastructure.features.quantum.training.solver_session import SolverSession
    from infrastructure.features.quantum.training.step_records import QuantumRecord

log = logging.getLogger(__name__)


class QuantumRecords(Observer):
    """An observer that writes the history of quantum steps to a file.

    Records that a rollback removes from the history are removed from the file.
    """

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
        except OSError as error:  # for display only: checkpoints have the records, too
            log.warning(phrase("training.file_incomplete", name=self.path, error=error))


class QuantumFacts(TypedDict):
    """The content of `quantum.json`."""

    problem: str
    solver: str
    records: "list[QuantumRecord]"


def quantum_facts(session: "SolverSession") -> QuantumFacts:
    """Return all quantum steps of a run, as JSON values."""
    config = session.config
    return {
        "problem": config.problem,
        "solver": session.config.solver,
        "records": session.history.records(),
    }
