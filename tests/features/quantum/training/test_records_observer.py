"""`quantum.json` tells every quantum step, and forgets what a training forgets."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.features.quantum.config import config_of
from infrastructure.features.quantum.records import QUANTUM_FILE
from infrastructure.features.quantum.report import quantum_steps
from infrastructure.features.quantum.training.records_observer import QuantumRecords
from infrastructure.monitoring.records.run_view import read_view
from tests.features.quantum.training.quantum_runs import extension_of, quantum_trainer, records


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / QUANTUM_FILE).read_text())
    return found


def test_a_training_records_its_steps_and_reports_them(saved_llama: Path, tmp_path: Path) -> None:
    run, lines = tmp_path / "run", list[str]()
    run.mkdir()
    quantum = {"data_budget": 0.5}
    trainer = quantum_trainer(
        saved_llama, tmp_path, quantum=quantum, num_epochs=4, optimization_frequency=3
    )
    observers = extension_of(trainer).recorders(run, lines.append)
    probe = extension_of(trainer).probes()["quantum_solver_seconds"]
    assert probe() is None
    trainer.add_hooks(observers)
    trainer.train()
    facts = written(run)
    assert facts["problem"] == "data_selection"
    assert facts["solver"] == config_of(trainer).solver
    assert len(facts["records"]) >= 2
    assert facts["records"] == records(trainer)
    assert probe() == facts["records"][-1]["solver_seconds"]
    shown = ("quantum.redundant_examples_excluded", "Quantum step (")
    assert sum(line.startswith(shown) for line in lines) == len(facts["records"])
    assert facts["records"][-1]["chosen"] in quantum_steps(read_view(run))


def session_with(*found: dict[str, Any]) -> Any:
    texts = [json.dumps(record) for record in found]
    return SimpleNamespace(
        config=SimpleNamespace(problem="data_selection", solver="auto"),
        history=SimpleNamespace(state_dict=lambda: list(texts), records=lambda: list(found)),
        texts=texts,
    )


def test_what_a_training_forgets_in_going_back_the_file_forgets(tmp_path: Path) -> None:
    state: Any = None
    session = session_with({"step": 0}, {"step": 9})
    observer = QuantumRecords(tmp_path, session)
    observer.train_start(state)
    assert [record["step"] for record in written(tmp_path)["records"]] == [0, 9]
    observer.session = session_with({"step": 0})
    observer.step_start(state)
    assert [record["step"] for record in written(tmp_path)["records"]] == [0]


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    state: Any = None
    observer = QuantumRecords(tmp_path, session_with({"step": 0}))
    observer.train_start(state)
    (tmp_path / QUANTUM_FILE).unlink()
    for moment in (observer.epoch_start, observer.step_start, observer.step_end):
        moment(state)
    assert not (tmp_path / QUANTUM_FILE).exists()


def test_a_disk_that_is_full_is_reported_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    state: Any = None
    blocked = tmp_path / "a file, no folder"
    blocked.write_text("")
    QuantumRecords(blocked, session_with({"step": 0})).train_end(state)
    assert f"training.file_incomplete(name={blocked / QUANTUM_FILE}" in caplog.text


def test_lines_go_to_who_looks_on(saved_llama: Path, tmp_path: Path) -> None:
    trainer = quantum_trainer(saved_llama, tmp_path, max_steps=1)
    lines: list[str] = []
    (observer,) = extension_of(trainer).recorders(tmp_path, lines.append)
    assert isinstance(observer, QuantumRecords)
    extension_of(trainer).session.report("a line")
    assert lines == ["a line"]
