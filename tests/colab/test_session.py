"""One call: what is here, what is kept, how long there is; and nothing that fails a notebook."""

from pathlib import Path

import pytest

from colab import session
from colab.session import begin
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.colab.test_drive import MOUNT_REFUSALS
from tests.deployment.runs import small_settings
from tests.fakes.google_colab import ColabSession

PLANTED = "hf_PlantedPlantedPlantedPlanted01"


@pytest.fixture(autouse=True)
def a_machine_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "ALERT_WEBHOOK_URL", session.PLACE_VARIABLE, "TEMPER_SESSION_HOURS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.chdir(tmp_path)


def test_on_colab_runs_are_local_and_copied_to_drive_before_the_end(
    colab_session: ColabSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = begin("my-project").settings()
    assert settings["output_dir"] == str(tmp_path / "runs")
    assert settings["backup.place"] == str(tmp_path / "drive/MyDrive/my-project")
    assert 0 < settings["training.deadline"] < 24 * 3600
    shown = capsys.readouterr().out.splitlines()
    for start in (
        "core.machine_python(",
        "CPU: core.machine_cpu(",
        "memory: core.machine_memory(",
        "disk: core.machine_disk(",
        ("GPU 0: core.machine_gpu(", "GPU: core.machine_without_gpu("),
        "notebook.backed_up_to_drive",
        "notebook.session_time(",
    ):
        assert any(line.startswith(start) for line in shown), start
    assert shown[-1].startswith("secrets: HF_TOKEN: not set")
    assert len(shown) <= 12


def test_the_settings_are_a_configuration_s(colab_session: ColabSession) -> None:
    settings = begin().settings()
    config = DeploymentConfig(**settings)
    assert {key: config.value(key) for key in settings} == settings


@pytest.mark.parametrize(("failure", "sentence"), MOUNT_REFUSALS)
def test_whatever_drive_refuses_the_session_begins_and_names_what_is_lost(
    colab_session: ColabSession, capsys: pytest.CaptureFixture[str], failure: str, sentence: str
) -> None:
    colab_session.behaves(mount=failure)
    settings = begin().settings()
    assert "backup.place" not in settings
    shown = capsys.readouterr().out
    assert "kept: notebook.runs_end_with_session()" in shown
    assert sentence in shown


def test_where_drive_refuses_the_training_is_done_all_the_same(
    colab_session: ColabSession, tmp_path: Path
) -> None:
    colab_session.behaves(mount="no_consent", page_answers=False)
    settings = small_settings(tmp_path, max_steps=1) | begin().settings()
    summary = TrainingDeployment(DeploymentConfig(**settings)).run()
    assert summary["status"] == "finished"
    assert Path(summary["paths"]["run"]).parent == tmp_path / "runs"
    assert "monitoring.checkpoints_not_backed_up" in summary["backup"]["text"]


def test_off_colab_there_is_a_folder_and_no_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPER_PLATFORM", "notebook")
    assert begin().settings() == {"output_dir": str(tmp_path / "runs")}
    assert "kept: notebook.runs_on_disk()" in capsys.readouterr().out


def test_a_place_of_the_environment_leaves_drive_alone(
    colab_session: ColabSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(session.PLACE_VARIABLE, f"https://me:{PLANTED}@host/x")
    assert "backup.place" not in begin().settings()
    assert colab_session.calls("mount") == []
    shown = capsys.readouterr().out
    assert "notebook.backed_up_by_environment" in shown
    assert PLANTED not in shown


def test_an_environment_that_wants_no_place_gets_none(
    colab_session: ColabSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(session.PLACE_VARIABLE, "none")
    assert "backup.place" not in begin().settings()
    assert colab_session.calls("mount") == []
    assert "notebook.backups_turned_off" in capsys.readouterr().out


def test_without_drive_nothing_is_mounted(
    colab_session: ColabSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "backup.place" not in begin(use_drive=False).settings()
    assert colab_session.calls("mount") == []
    assert "notebook.drive_not_requested" in capsys.readouterr().out


def test_a_notebook_that_lies_on_drive_still_writes_to_the_local_disk(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin()
    monkeypatch.setattr(session, "is_on_drive", lambda path: path.name == "temper")
    monkeypatch.chdir(tmp_path / "drive/MyDrive/temper")
    monkeypatch.setattr(session, "LOCAL_DISK", tmp_path / "content")
    # `cwd` follows the stand-in's link, as no real mount has one
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "drive/MyDrive/temper")
    assert begin().settings()["output_dir"] == str(tmp_path / "content/temper/runs")


def test_secrets_are_brought_and_their_values_shown_nowhere(
    colab_session: ColabSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    colab_session.behaves(secrets={"HF_TOKEN": {"payload": PLANTED}})
    begun = begin()
    shown = capsys.readouterr().out
    assert "secrets: HF_TOKEN: Colab secrets; ALERT_WEBHOOK_URL: not set" in shown
    assert PLANTED not in f"{shown} {begun!r} {begun.settings()}"


def test_a_second_run_of_the_cell_is_the_same(colab_session: ColabSession) -> None:
    first, second = begin(), begin()
    assert first.place == second.place
    assert len(colab_session.calls("mount")) == 1
