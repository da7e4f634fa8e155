"""Whatever a sampler does, the training goes on, and says so; answers of another process count from
the step that they are used in; a kill changes nothing."""

import json
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core import optional
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.training.overhead_budget import (
    OverheadBudget,
    over_budget,
    too_few_steps,
)
from infrastructure.features.quantum.training.quantum_extension import QuantumExtension
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.deployment.runs import deploy, losses, runs_of, small_settings
from tests.features.quantum.samplers.questions import waits_cut_short
from tests.features.quantum.training.quantum_runs import (
    extension_of,
    quantum_trainer,
    records,
)
from tests.forks import outcome_of_forked
from tests.slow import slow

BAD = "tests.features.quantum.training.bad_samplers"


class FirstStep(Observer):
    """When the first step began."""

    def __init__(self) -> None:
        self.time = 0.0

    def step_start(self, state: TrainingState) -> None:
        self.time = self.time or time.monotonic()


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("Hanging", "quantum.sampler_timed_out"),
        pytest.param("Raising", "the solver is offline", marks=slow),  # and in the next test
        ("Garbage", "Garbage"),
        pytest.param("Empty", "Empty", marks=slow),
    ],
)
def test_a_sampler_that_does_not_answer(
    saved_llama: Path,
    tmp_path: Path,
    sampler: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, timeout = FirstStep(), 60  # which a busy machine is given to answer
    limits = waits_cut_short(monkeypatch) if sampler == "Hanging" else [timeout]
    trainer = quantum_trainer(
        saved_llama,
        tmp_path,
        quantum={"data_budget": 0.5, "solver": f"{BAD}:{sampler}", "timeout": timeout},
        hooks=(first,),
        checkpoints=tmp_path / "c",
        max_steps=2,
    )
    trainer.prepare()
    trainer.train()
    (record,) = records(trainer)
    assert record["outcome"] == "answered"
    assert record["is_fallback"]
    assert record["answered_by"] == next(iter(record["alternatives"]))
    assert record["solver_seconds"] < timeout + 0.5
    assert 0 < limits[0] <= timeout
    assert record["allowed_seconds"] is None  # and no large number that means nothing
    (noted,) = trainer.state.recoveries
    assert noted["kind"] == "quantum_step"
    assert noted["message"] == "; ".join(record["failures"])
    assert message in noted["message"]
    assert trainer.state.step == 2


def test_the_next_of_the_chain_answers(saved_llama: Path, tmp_path: Path) -> None:
    trainer = quantum_trainer(
        saved_llama,
        tmp_path,
        quantum={
            "data_budget": 0.5,
            "solver": f"{BAD}:Raising",
            "fallback": ["dense_annealer"],
            "timeout": 30,
        },
        max_steps=1,
    )
    trainer.train()
    (record,) = records(trainer)
    assert "the solver is offline" in record["failures"][0]
    assert record["answered_by"] == "dense_annealer" or record["is_fallback"]


@pytest.mark.parametrize("quantum", [{"solver": "exakt"}, {"fallback": ["exakt"]}], ids=str)
def test_an_unknown_sampler_is_refused_before_anything(
    saved_llama: Path, tmp_path: Path, quantum: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=exact\)"):
        quantum_trainer(saved_llama, tmp_path, quantum=quantum)


def test_a_solver_that_is_not_here_is_refused_before_anything(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional, "is_installed", lambda package: package != "azure.quantum")
    needed = r"needed_for=quantum\.the_sampler\(name=azure_quantum\), package=azure\.quantum, "
    missing = rf"setting=quantum\.solver, .*core\.package_not_installed\({needed}"
    with pytest.raises(ValueError, match=missing):
        quantum_trainer(saved_llama, tmp_path, quantum={"solver": "azure_quantum"})
    lost = r"setting=quantum\.fallback, .*core\.plugin_module_not_found\(.*address=lost:Cls"
    with pytest.raises(ValueError, match=lost):
        quantum_trainer(saved_llama, tmp_path, quantum={"fallback": ["lost:Cls"]})


def test_a_solver_has_what_the_overhead_leaves_it(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the timeout is: what was foretold is no bound, the end of a solver is."""
    monkeypatch.setattr(OverheadBudget, "allowed_seconds", lambda *_: 4.0)
    trainer = quantum_trainer(
        saved_llama,
        tmp_path,
        quantum={
            "data_budget": 0.5,
            "max_overhead_percent": 10_000,
            "solver": f"{BAD}:Hanging",
            "timeout": 300,
        },
        max_steps=1,
    )
    trainer.train()
    (record,) = records(trainer)
    assert record["is_fallback"]
    assert record["solver_seconds"] < 30  # 4, and what a busy machine takes to end it; not 300
    cut = "quantum.solver_time_cut_by_budget(limit=quantum.max_overhead_percent"
    assert cut in record["remarks"][-1]
    assert "10000" in record["remarks"][-1].replace("_", "").replace(",", "")


def test_an_answer_holds_with_all_its_records_or_not_at_all(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> list[str]:
        raise LookupError("planted")

    monkeypatch.setattr(DataPipeline, "places_of", broken)
    quantum = {"data_budget": 0.5}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, num_epochs=1)
    trainer.train()
    assert [record["outcome"] for record in records(trainer)] == ["failed"]
    assert extension_of(trainer).session.decisions.selection is None
    assert trainer.state.step == trainer.prepare().loop.total_steps


def test_a_budget_that_is_all_of_the_data_is_reported(saved_llama: Path, tmp_path: Path) -> None:
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"data_budget": 0.99}, max_steps=1)
    trainer.train()
    (record,) = records(trainer)
    assert record["outcome"] == "skipped"
    assert "quantum.budget_excludes_nothing" in record["why"]


def test_numbers_that_are_not_reported_yet_are_reported_after_a_resume(
    saved_llama: Path, tmp_path: Path
) -> None:
    first, second = (quantum_trainer(saved_llama, tmp_path) for _ in range(2))
    extension_of(first).session.unlogged = {"quantum_energy": 1.5}
    extension_of(second).load_state_dict(json.loads(json.dumps(extension_of(first).state_dict())))
    assert extension_of(second).session.unlogged == {"quantum_energy": 1.5}


KILLED = """
import os, signal, sys
from infrastructure.commands.main import main
from infrastructure.features.quantum.training import solver_session
solve, number = solver_session.quantum_solve, [0]
def killed(*arguments, **options):
    number[0] += 1
    if number[0] == {kill_at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(*arguments, **options)
solver_session.quantum_solve = killed
sys.exit(main(sys.argv[1:]))
"""


def run(folder: Path, kill_at: int) -> int:
    """The real command, which dies in its question number `kill_at`."""
    program = [sys.executable, "-c", KILLED.format(kill_at=kill_at)]
    command = [*program, "train", "--config", "c.yaml"]
    return outcome_of_forked(command, cwd=folder).returncode


def test_killed_in_a_quantum_step_and_gone_on_with(tmp_path: Path) -> None:
    """The second question is killed; the run that goes on is, bit for bit, the undisturbed one."""
    settings = small_settings(tmp_path, enabled_extensions=["quantum"], optimization_frequency=3)
    settings |= {"quantum": {"data_budget": 0.5, "max_overhead_percent": 1e6}}
    settings |= {"enable_monitoring": False, "enable_testing": False}
    found = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        settings["output_dir"] = str(folder / "runs")
        if name == "killed":
            (folder / "c.yaml").write_text(json.dumps(settings))
            assert run(folder, kill_at=2) == -signal.SIGKILL
        directory, _ = deploy(DeploymentConfig(**settings))
        assert runs_of(folder) == [directory]
        records_read = json.loads((directory / "quantum.json").read_text())["records"]
        weights = (directory / "final" / "model.safetensors").read_bytes()
        selections = [record["selection"] for record in records_read]
        found.append((losses(directory), weights, selections))
    assert len(found[0][2]) >= 2
    assert found[0] == found[1]


def extension_without_a_model(frequency: int | None, **quantum: Any) -> QuantumExtension:
    parts: Any = SimpleNamespace(
        sections={"quantum": QuantumConfig(**quantum)},
        training_config=TrainingConfig(optimization_frequency=frequency),
    )
    return QuantumExtension(parts)


@pytest.mark.parametrize("in_force", ["none", "before", "newest"])
def test_a_selection_of_the_next_epoch_is_not_in_force_after_a_restart_either(
    in_force: str,
) -> None:
    first, again = extension_without_a_model(None), extension_without_a_model(None)
    if in_force != "none":
        first.session.decisions.select_examples([1, 4])
        first.in_force = first.session.decisions.selection
    if in_force != "newest":
        first.session.decisions.select_examples([0, 9, 300])
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert again.session.decisions.selection_hash == first.session.decisions.selection_hash
    expected = {"none": None, "before": [1, 4], "newest": [1, 4]}[in_force]
    assert (None if again.in_force is None else again.in_force.tolist()) == expected


@pytest.mark.parametrize(
    ("problem", "frequency", "last", "due"),
    [
        ("data_selection", None, None, [0, 5, 10, 20]),  # at once, and then no more
        ("data_selection", None, 0, []),
        ("data_selection", 5, 3, [10, 20]),
        ("block_selection", 5, 5, [10, 20]),
    ],
)
def test_when_something_is_to_be_decided(
    problem: str, frequency: int | None, last: int | None, due: list[int]
) -> None:
    extension = extension_without_a_model(frequency, problem=problem)
    extension.session.last_step = last
    state = TrainingState(torch.nn.Linear(1, 1), total_steps=20)
    found = []
    for state.step in (0, 5, 10, 20):
        found += [state.step] if extension._is_due(state) else []
    assert found == due
    state.step, state.position.phase = 6, 1  # other blocks train than were chosen from
    is_new_phase = problem == "block_selection" and last is not None
    assert not is_new_phase or extension._is_due(state)
    ahead = {None: 14, 5: 5}[frequency]
    assert extension._steps_ahead(state) == ahead
    state.step = 18
    assert extension._steps_ahead(state) == 2


class PlannedStep:
    """A data selection step with given costs, which keeps the questions that it gets."""

    def __init__(self, *, has_choice: bool = True, least: float = 2.0, number: int = 50) -> None:
        self.choice, self.least, self.number = has_choice, least, number
        self.questions: list[Any] = []

    def has_choice(self, most: int) -> bool:
        return self.choice

    def nothing_to_leave_out(self, most: int) -> str:
        return f"nothing of {most}"

    def least_steps(self, global_batch_size: int, *, measures_training: bool) -> float:
        self.questions.append((global_batch_size, measures_training))
        return self.least

    def gradient_seconds(self) -> float:
        return 0.5

    def training_seconds(self) -> float:
        return 0.25

    def num_candidates(self, *given: Any, never_skips: bool) -> int:
        self.questions.append((*given, never_skips))
        return self.number

    def num_wanted(self, most: int) -> int:
        return 200

    def cost_seconds(self, gradient_seconds: float, number: int) -> float:
        return gradient_seconds * number / 10

    def problem(self, number: int) -> str:
        return f"problem of {number}"


@pytest.mark.parametrize(
    ("step", "settings", "expected", "questions", "must_save"),
    [
        (PlannedStep(has_choice=False), {}, "nothing of 300", [], False),
        (
            PlannedStep(least=10.5),
            {},
            too_few_steps(10.5, 1000, 1.0),
            [(8, True)],
            False,
        ),
        (
            PlannedStep(number=0),
            {},
            over_budget(3 + 0.5 * 20, 10 * 2.0, 1.0),
            [(8, True), (0.5, 17.0, 300, False)],
            False,
        ),
        (PlannedStep(), {}, (50, 5.5, 20.0), [(8, True), (0.5, 17.0, 300, False)], True),
        (PlannedStep(least=10.0, number=300), {}, (300, 18.0, 20.0), None, False),
        (PlannedStep(), {"candidates": 50}, (50, 5.5, 20.0), None, False),
        (
            PlannedStep(),
            {"max_overhead_percent": 3.0, "forecast": 7.0},
            (50, 5.5, 30 * 7.0),
            [(8, False), (0.5, 30 * 7.0 - 3, 300, False)],
            True,
        ),
        (
            PlannedStep(least=99.0),
            {"frequency": 100},
            (50, 5.5, 20.0),
            [(8, True), (0.5, 17.0, 300, True)],
            True,
        ),
    ],
)
def test_how_many_are_examined_follows_from_the_measured_costs(
    step: PlannedStep,
    settings: dict[str, Any],
    expected: Any,
    questions: list[Any] | None,
    must_save: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three seconds were spent before; a sampler of 300 variables, 400 examples."""
    given = dict(settings)
    frequency, forecast = given.pop("frequency", None), given.pop("forecast", None)
    extension = extension_without_a_model(frequency, max_qubits=300, **given)
    session, answers = extension.session, list[Any]()
    extension.trainer.prepare = lambda: SimpleNamespace(loop=SimpleNamespace(global_batch_size=8))  # type: ignore[method-assign, assignment, return-value]
    session.clock = lambda: 3.0
    session.cost.forecast_step_seconds = forecast
    data = SimpleNamespace(num_candidates=400)
    monkeypatch.setattr(QuantumExtension, "_data", data)
    monkeypatch.setattr(extension, "data_selection_step", lambda _: step)
    monkeypatch.setattr(session, "skip", lambda _, why: answers.append(why))
    monkeypatch.setattr(session, "solve", lambda _, *given: answers.append(given))
    state = TrainingState(torch.nn.Linear(1, 1), total_steps=1000)
    step.questions.clear()
    extension._select_data(state)
    if isinstance(expected, tuple):
        number, *seconds = expected
        expected = (step, f"problem of {number}", *seconds)
    assert answers == [expected]
    assert questions is None or step.questions == questions
    assert state.must_save is must_save


def test_numbers_wait_for_the_metrics_of_a_step() -> None:
    extension, state = extension_without_a_model(None), TrainingState(torch.nn.Linear(1, 1))
    state.optimizer = torch.optim.SGD(state.model.parameters(), lr=1e-3)
    extension.session.unlogged = {"quantum_energy": 1.5}
    extension.step_end(state)
    assert (state.metrics, extension.session.unlogged) == ({}, {"quantum_energy": 1.5})
    state.metrics = {"loss": 2.0}
    extension.step_end(state)
    assert state.metrics == {"loss": 2.0, "quantum_energy": 1.5}
    assert extension.session.unlogged == {}


@pytest.mark.parametrize(
    ("num_examples", "problem", "is_chosen", "is_noted"),
    [
        (9, "data_selection", False, True),
        (20, "data_selection", False, False),
        (9, "data_selection", True, False),
        (9, "block_selection", False, False),
    ],
)
def test_a_random_draw_is_noted_until_examples_are_chosen(
    num_examples: int,
    problem: str,
    is_chosen: bool,
    is_noted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extension = extension_without_a_model(None, problem=problem)
    data = SimpleNamespace(num_candidates=20, num_examples=num_examples)
    monkeypatch.setattr(QuantumExtension, "_data", data)
    if is_chosen:
        extension.session.decisions.select_examples([1])
    note = "quantum.examples_drawn_at_random(selected=9, total=20, data_budget=auto)"
    assert extension.session.without_answer() == note * is_noted


def test_the_data_gives_the_selection_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def select(ids: Any) -> None:
        data.selected = ids
        given.append(ids.tolist())

    data = SimpleNamespace(selected=None, select=select, unselect=lambda: given.append("all"))
    monkeypatch.setattr(QuantumExtension, "_data", data)
    extension, state = extension_without_a_model(None), TrainingState(torch.nn.Linear(1, 1))
    extension.hold_selection(state)
    extension.in_force = np.array([1, 4])  # as a run resumes within an epoch
    extension.session.decisions.select_examples([2, 5])
    state.position.example = 8
    extension.hold_selection(state)
    extension.hold_selection(state)  # the data gives it already
    state.position.example = 0
    extension.hold_selection(state)
    assert given == ["all", [1, 4], [2, 5]]
