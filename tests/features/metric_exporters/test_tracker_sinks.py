"""What trackers are given, by packages that stand in for theirs with the same signatures."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.core.errors import MissingPackageError
from infrastructure.training.metrics.sinks import SINKS, make_sinks

RECORDS: list[dict[str, Any]] = [
    {"step": 1, "epoch": 0, "loss": 2.0, "note": "a text"},
    {"step": 2, "epoch": 0, "kind": "evaluation", "eval_loss": 1.5},
]
NUMBERS = [{"train/loss": 2.0}, {"evaluation/loss": 1.5}]
Calls = list[tuple[str, Any]]


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = SimpleNamespace(__spec__=SimpleNamespace(name=name), **functions)
    monkeypatch.setitem(sys.modules, name, module)


def write_all(name: str, run: Path) -> None:
    (sink,) = make_sinks([name], run)
    sink.close()  # nothing is open yet
    for record in RECORDS:
        sink.write(record)
    sink.truncate_after(1)
    sink.close()
    sink.close()


def test_trackio_gets_numbers_and_goes_on_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: Calls = []
    stand_in(
        monkeypatch,
        "trackio",
        init=lambda **given: calls.append(("init", given)),
        log=lambda metrics, step=None: calls.append(("log", (metrics, step))),
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setenv("TRACKIO_PROJECT", "mine")
    write_all("trackio", tmp_path / "a-run")
    begin = {"project": "mine", "name": "a-run", "resume": "allow", "embed": False}
    logged = [("log", (numbers, step)) for step, numbers in enumerate(NUMBERS, start=1)]
    assert calls == [("init", begin), *logged, ("finish", None)]


def test_trackio_has_each_step_once_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It holds steps up to 4; the run goes on after 2, and later goes back from 6 to 5."""
    logged: list[tuple[int, float]] = []

    def log(metrics: dict[str, float], step: int) -> None:
        logged.append((step, metrics["train/loss"]))

    init = lambda **given: SimpleNamespace(_next_step=5)  # noqa: E731
    stand_in(monkeypatch, "trackio", init=init, log=log, finish=lambda: None)
    (sink,) = make_sinks(["trackio"], tmp_path / "a-run")
    sink.truncate_after(2)
    for step in (3, 4, 5, 6):
        sink.write({"step": step, "loss": 1.0})
    sink.truncate_after(5)
    for step in (6, 7):
        sink.write({"step": step, "loss": 2.0})
    sink.close()
    assert logged == [(5, 1.0), (6, 1.0), (7, 2.0)]


def test_wandb_gets_numbers_by_our_steps_and_nothing_of_the_console(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: Calls = []
    run = SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append(("steps", (name, step_metric))),
        log=lambda data: calls.append(("log", data)),
        finish=lambda: calls.append(("finish", None)),
    )

    def init(**given: Any) -> SimpleNamespace:
        calls.append(("init", given))
        return run

    stand_in(monkeypatch, "wandb", init=init)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    write_all("wandb", tmp_path / "a-run")
    begin = {
        **{"project": "temper", "name": "a-run", "id": "a-run", "resume": "allow"},
        **{"dir": str(tmp_path / "a-run"), "settings": {"console": "off", "silent": True}},
    }
    logged = [("log", {"step": n, **numbers}) for n, numbers in enumerate(NUMBERS, start=1)]
    assert calls == [("init", begin), ("steps", ("*", "step")), *logged, ("finish", None)]


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_with_its_pip_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Before there is a run, and where one is written to."""
    monkeypatch.setattr("infrastructure.core.optional.is_installed", lambda package: False)
    for use in (lambda: SINKS.check_usable([name]), lambda: make_sinks([name], tmp_path)):
        with pytest.raises(
            MissingPackageError,
            match=r"core\.package_not_installed\(needed_for=metric_exporters\.sink"
            rf"\(name={name}\), package={name}, command=pip ",
        ):
            use()
