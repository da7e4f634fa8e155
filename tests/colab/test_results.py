"""What cells show of data, model and report, from a real run; without a notebook, as text."""

import json
from pathlib import Path
from typing import Any

import IPython.display
import pytest

import colab
from colab import results
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.deployment.runs import small_settings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = small_settings(tmp_path_factory.mktemp("trained"), max_steps=3)
    return TrainingDeployment(DeploymentConfig(**settings), say=lambda line: None).run()


def test_a_model_answers_and_its_answers_are_shown(
    trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = colab.ask(trained["paths"]["model"], ["Reverse 123", "Reverse 456"], max_tokens=4)
    shown = capsys.readouterr().out
    assert len(answers) == 2
    assert "Reverse 456\n  → " in shown


def test_a_model_is_measured(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "Reverse 12", "completion": "21"}) + "\n")
    colab.evaluate(trained["paths"]["model"], data)
    shown = capsys.readouterr().out
    assert "loss per token" in shown
    assert (Path(trained["paths"]["run"]) / "evaluations").is_dir()


def test_a_checkpoint_becomes_a_folder_once(
    trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = colab.export(trained["paths"]["run"], step=2)
    assert folder == Path(trained["paths"]["run"]) / "exported" / "step-2"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert colab.export(trained["paths"]["run"], step=2) == folder
    assert "notebook.already_exported(" in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert colab.export(trained["paths"]["run"]).name == "step-3"


def test_a_step_that_is_not_there_is_reported(trained: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"run\.no_such_checkpoint"):
        colab.export(trained["paths"]["run"], step=99)


def test_a_run_is_named_as_on_the_command_line(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(trained["paths"]["run"])
    runs, at_step = run.parent, f"{run.name}@3"
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "Reverse 12", "completion": "21"}) + "\n")
    answers = colab.ask(str(run), "Reverse 12", max_tokens=4)
    assert colab.ask(run.name, ["Reverse 12"], max_tokens=4, output_dir=runs) == answers
    assert colab.ask(at_step, ["Reverse 12"], max_tokens=4, output_dir=runs) == answers
    colab.evaluate(run.name, data, against=f"{run.name}@1", max_tokens=2, output_dir=runs)
    exported = colab.export(f"{run.name}@1", output_dir=runs)
    assert exported == run / "exported" / "step-1"
    capsys.readouterr()
    colab.show_report(output_dir=runs)
    assert f"The report: {run / 'report.html'}" in capsys.readouterr().out


def test_an_unknown_run_is_reported_with_those_that_there_are(trained: dict[str, Any]) -> None:
    run = Path(trained["paths"]["run"])
    about = rf"output_dir={run.parent}, .*known={run.name}"
    for call in (colab.export, colab.show_report):
        with pytest.raises(ValueError, match=about):
            call("nosuchrun", output_dir=run.parent)
    with pytest.raises(ValueError, match=rf"neither_run_nor_model\(.*known={run.name}"):
        colab.ask("nosuchrun", ["?"], output_dir=run.parent)


def test_the_report_is_framed_in_a_notebook_and_named_elsewhere(
    trained: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(trained["paths"]["run"])
    colab.show_report(run)
    assert f"The report: {run / 'report.html'}" in capsys.readouterr().out
    shown: list[Any] = []
    monkeypatch.setattr(results, "in_notebook_kernel", lambda: True)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    colab.show_report(run, height_pixels=300)
    (frame,) = shown
    assert "height:300px" in frame.data
    assert "&lt;!DOCTYPE html&gt;" in frame.data, "it is a page of its own, escaped into the frame"


def test_a_report_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"notebook\.no_report_yet\(path=.*report\.html"):
        colab.show_report(tmp_path)


def test_the_data_is_shown_with_what_is_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = DeploymentConfig(**small_settings(tmp_path))
    colab.show_data(config)
    shown = capsys.readouterr().out
    assert "data.rows_read(count=24, " in shown
    assert "⟦" in shown, "the tokens that are learnt are marked"


def test_sample_chats_are_written_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = colab.sample_chats(tmp_path / "chats.jsonl")
    assert path.is_file()
    assert '{"messages": [{"role": "system"' in capsys.readouterr().out


def test_advice_on_an_export_names_what_the_function_takes(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEMPER_MESSAGES")
    run = trained["paths"]["run"]
    with pytest.raises(ValueError, match="unknown export format 'ggfu'"):
        colab.export(run, file_format="ggfu")
    with pytest.raises(ValueError, match='Use part="merged"'):
        colab.export(run, part="lora", bits=4)
    with pytest.raises(ValueError, match="unknown part 'whole'"):
        colab.export(run, part="whole")
