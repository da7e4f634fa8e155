"""Training, going on and measuring with one call each, as `temper` has them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import temper
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import WORDS
from infrastructure.deployment import one_call
from infrastructure.deployment.resuming import RunToResume
from infrastructure.evaluation.request import Request
from infrastructure.run.directory import RunDirectory
from infrastructure.run.trained_rows import trained_rows
from tests.deployment.runs import losses, small_settings, write_rows

KINDS: list[tuple[str, Any]] = [("check", str), ("mend", Path)]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return small_settings(tmp_path, max_steps=2)


def test_it_trains_and_the_same_call_trains_nothing_more(settings: dict[str, Any]) -> None:
    section = settings.pop("data")
    data = section.pop("path")
    settings |= {f"data.{name}": value for name, value in section.items()}
    summary = temper.train(data, **settings)
    assert summary["status"] == "finished"
    run = Path(summary["paths"]["run"])
    assert [step for step, _ in losses(run)] == [1, 2]
    assert temper.train(data, **settings)["paths"] == summary["paths"]
    assert len(losses(run)) == 2


def test_a_run_goes_on_and_is_measured(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(temper.train(**settings, run_name="mine")["paths"]["run"])
    with pytest.raises(ValueError, match="max_steps"):
        temper.resume(run.name, max_step=6)
    with pytest.raises(
        CheckpointError,
        match=r"finished_run_settings_changed\(.*"
        r"setting_was_and_is\(setting=max_steps, before=2, now=3\), names=max_steps",
    ):
        temper.resume(run.name, max_steps=3)
    summary = temper.resume(
        "mine",
        **{"training.max_steps": 3, "training.learning_rate": 0.5},
        accept=["max_steps", "learning_rate"],
    )
    assert losses(Path(summary["paths"]["run"]))[-1][0] == 3
    rows = write_rows(tmp_path / "other.jsonl", 500, 508)
    measured = temper.evaluate("runs/mine", rows, **{"training.validation_prompts": 2})
    assert measured.metrics["eval_loss"] > 0
    assert measured.num_questions == 2
    shown = capsys.readouterr().err
    note = "evaluation.not_all_prompts_answered(num_answers=2, num_questions=8, why=)"
    assert f"note: {note}\n" in shown
    assert note in measured.notes
    [written] = (tmp_path / "runs/evaluations").glob("*.json")
    assert json.loads(written.read_text())["metrics"] == measured.metrics


def test_a_place_that_is_given_goes_before_the_recorded_one(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = Path(temper.train(**settings)["paths"]["run"])
    temper.resume(run.name, backup_place=str(tmp_path / "place"))
    assert (tmp_path / "place" / run.name / "versions").is_dir()


def test_a_run_whose_disk_is_gone_comes_back_from_its_place_and_goes_on(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    place = str(tmp_path / "place")
    run = Path(temper.train(**settings, backup_place=place)["paths"]["run"])
    shutil.rmtree(run.parent)
    with pytest.raises(
        ValueError,
        match=rf"deployment\.named_run_not_found\(name=nobody, output_dir=runs, .*{run.name}",
    ):
        temper.resume("nobody", backup_place=place)
    temper.resume(run.name, backup_place=place, max_steps=3, accept=["max_steps"])
    assert [step for step, _ in losses(run)] == [1, 2, 3]
    rows = trained_rows(RunDirectory(run))
    assert rows is not None
    shutil.rmtree(run.parent)
    temper.resume(run.name, backup_place=place)
    again = trained_rows(RunDirectory(run))
    assert again is not None
    assert (again.key, again.hashes.tolist()) == (rows.key, rows.hashes.tolist())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: temper.train("nothing.jsonl"), "nothing.jsonl"),
        (lambda: temper.train(preset="quik"), "quick"),
        (lambda: temper.train(lerning_rate=1e-3), r"config\.unknown_key_meant.*'learning_rate'"),
        (lambda: temper.resume(data="rows.jsonl"), "monitoring.no_runs"),
        (
            lambda: temper.resume("any", accept=["max_stepz"]),
            r"run\.unknown_accepted_name\(name=max_stepz,.*meant=max_steps\)",
        ),
        (lambda: temper.resume("nothing"), "nothing"),
        (lambda: temper.evaluate("nothing", "nothing.jsonl"), "nothing"),
        (
            lambda: temper.evaluate("embedded", "nothing.jsonl", max_steps=3),
            r"evaluation\.flag_no_effect\(key=training\.max_steps",
        ),
    ],
    ids=["data", "preset", "setting", "newest", "accepted", "run", "model", "unused"],
)
def test_what_is_wrong_is_a_sentence(call: Any, sentence: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
    assert not Path("runs").exists()


def test_in_a_call_a_setting_is_a_keyword(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)
    with pytest.raises(ValueError, match=r"^max_steps has no effect"):
        temper.evaluate("embedded", "nothing.jsonl", max_steps=3)


def test_what_it_is_to_be_given_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"How is number {n}?,Number {n} is well\n" for n in range(20))
    Path("faq.csv").write_text("customer says,we_reply\n" + rows)
    for call in (
        lambda: temper.train("faq.csv", max_steps=4),
        lambda: temper.evaluate("embedded", "faq.csv"),
    ):
        with pytest.raises(ValueError, match=r"data\.in_no_known_shape") as raised:
            call()
        columns = 'data.set_prompt_and_answer(first="customer says", second=we_reply)'
        assert columns in str(raised.value)
    given = {"prompt_column": "customer says", "answer_column": "we_replied"}
    with pytest.raises(ValueError, match=r"\(setting=data\.answer_column, .*name=we_replied,"):
        temper.train("faq.csv", max_steps=4, **given)


def test_what_somebody_elses_code_raises_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_config(*_: object, **__: object) -> None:
        raise ValueError("data.path of mine, --new-run")

    monkeypatch.setattr(one_call, "load_config", load_config)
    with pytest.raises(ValueError, match=r"^data\.path of mine, --new-run$"):
        temper.train()


def test_the_side_of_notebooks_is_there_too() -> None:
    import colab
    import temper.colab

    assert temper.colab is colab
    assert "colab" in dir(temper)
    shown = {name for name in dir(temper) if not name.startswith("__")}
    assert shown == {*temper.__all__, "colab"}


def test_what_is_given_to_a_measurement_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = write_rows(tmp_path / "rows.jsonl")
    arrived: list[Any] = []

    def measure(config: Any, request: Any) -> tuple[Any, list[str]]:
        arrived.append((config, request))
        return SimpleNamespace(notes=[]), []

    monkeypatch.setattr(one_call, "evaluate_configured", measure)
    monkeypatch.setattr(one_call, "check_measured", lambda config, other: arrived.append(other))
    temper.evaluate(
        "a/model", rows, against="b/model", measures=["f1"], max_tokens=9, max_length=77
    )
    other, (config, request) = arrived
    assert (config.model.name, config.data.path) == ("a/model", str(rows))
    assert config.data.max_length == 77
    assert (other, request.against, request.measures, request.max_tokens) == (
        *("b/model", "b/model", ("f1",), 9),
    )
    temper.evaluate("a/model", rows)
    _, request = arrived[-1]
    assert (request.against, request.measures, request.max_tokens) == (None, None, None)


def test_both_models_of_a_measurement_are_checked_and_mended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    def keep(part: Callable[[Any], object], lines: list[str]) -> Callable[..., Any]:
        def measure(*given: Any) -> Any:
            done.append(part(given))
            return None, lines

        return measure

    monkeypatch.setattr(one_call, "check_model", lambda name: done.append(("check", name)))
    monkeypatch.setattr(one_call, "repair_model", lambda path: done.append(("mend", path)))
    monkeypatch.setattr(one_call, "measure_model", keep(lambda given: given[1], []))
    config = DeploymentConfig(model_name="one")
    each = [(what, kind(name)) for name in ("one", "two") for what, kind in KINDS]
    one_call.evaluate_configured(config, request := Request(against="two"))
    assert done == [*each, request]
    done.clear()
    one_call.evaluate_configured(config)
    assert done == [*each[:2], None]


@pytest.mark.parametrize(
    ("is_finished", "checkpoint", "accept", "done"),
    [
        (True, None, (), ["repair", "complete"]),
        (True, Path("a-version"), (), [("resume", Path("a-version"))]),
        (True, None, ("data",), [("resume", None)]),
        (False, None, (), [("resume", None)]),
    ],
)
def test_a_finished_run_is_completed_and_any_other_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
    is_finished: bool,
    checkpoint: Path | None,
    accept: tuple[str, ...],
    done: list[Any],
) -> None:
    found: list[Any] = []

    class Deployment:
        def __init__(self, config: object, show_line: object, accepted: object) -> None:
            assert accepted == accept

        def complete(self, run: object) -> None:
            found.append("complete")

        def resume(self, run: object, version: Path | None) -> None:
            found.append(("resume", version))

    monkeypatch.setattr(one_call, "TrainingDeployment", Deployment)
    monkeypatch.setattr(one_call, "repair_finished", lambda *_: found.append("repair"))
    for place, masked, is_shown in (
        (None, ["backup.place"], True),
        (None, [], False),
        ("a", ["backup.place"], False),  # it is given anew
    ):
        run: Any = SimpleNamespace(
            run_id="one",
            final=Path("final"),
            masked=lambda masked=masked: masked,
            is_finished=lambda: is_finished,
        )
        config = DeploymentConfig(**({} if place is None else {"backup.place": place}))
        lines: list[str] = []
        one_call.resume_run(RunToResume(run, checkpoint, config), accept, lines.append)
        assert ("deployment.backup_password_not_recorded()" in lines) == is_shown
        finished = "deployment.resumed_run_finished(run_id=one, path=final)"
        assert (finished in lines) == ("complete" in done)
    assert found == done * 3


def test_what_is_given_to_a_run_that_goes_on_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[tuple[Any, ...]] = []
    expected = [
        ("mine", "there", [("training.max_steps", 6)], ["data"], None),
        (None, "runs", [("backup.place", "a"), ("training.max_steps", 7)], [], "a"),
        (None, "runs", [("backup.place", None)], [], None),
    ]
    monkeypatch.setattr(one_call, "find_to_resume", lambda *given: given)
    monkeypatch.setattr(one_call, "resume_run", lambda *given: arrived.append(given))
    temper.resume(Path("mine"), output_dir=Path("there"), accept=["data"], max_steps=6)
    temper.resume(backup_place="a", max_steps=7)
    temper.resume(backup_place=None)
    for (name, folder, changes, accept, _, place), accepted in arrived:
        assert accept == accepted
        given = [(change.key, change.value) for change in changes]
        placed = None if place is None else place.value
        assert (name, folder, given, list(accept), placed) == expected.pop(0)
    assert expected == []
