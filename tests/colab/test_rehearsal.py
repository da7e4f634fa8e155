"""A machine is taken away: a real process is killed, its disk is gone, and the run goes on."""

from pathlib import Path
from typing import Any

import psutil
import pytest

import colab
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.files import file_sha256
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.monitoring.records.run_owner import read_trainer
from tests.deployment.runs import small_settings
from tests.slow import slow


def configured(folder: Path, **more: Any) -> DeploymentConfig:
    return DeploymentConfig(
        **{**small_settings(folder, num_epochs=40, checkpoint_frequency=10), **more}
    )


def trained(config: DeploymentConfig) -> dict[str, Any]:
    return TrainingDeployment(config, say=lambda line: None).run()


@slow
@pytest.mark.timeout(300)
def test_what_is_left_at_the_place_comes_to_the_same_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Longer than others: a process of its own starts, trains and dies."""
    config = configured(tmp_path, backup={"place": str(tmp_path / "place")})
    colab.rehearse_disconnect(config, at_step=20)
    output = capsys.readouterr().out
    assert "notebook.rehearsal_machine_taken_away" in output
    (lost,) = Path(config.output_dir, "lost-machines").iterdir()
    trainer = read_trainer(lost)
    assert trainer is not None
    assert not psutil.pid_exists(trainer.pid)
    assert not list(Path(config.output_dir).glob("*/run.json"))
    colab.rehearse_disconnect(config, at_step=20)
    assert "notebook.rehearsal_machine_already_gone" in capsys.readouterr().out
    summary = trained(config)
    assert Path(summary["paths"]["run"]).name == lost.name
    colab.rehearse_disconnect(config, at_step=20)
    assert "notebook.rehearsal_run_finished" in capsys.readouterr().out
    undisturbed = trained(configured(tmp_path, output_dir=str(tmp_path / "undisturbed")))
    ends = [Path(s["paths"]["model"], "model.safetensors") for s in (summary, undisturbed)]
    assert file_sha256(ends[0]) == file_sha256(ends[1])


def test_without_a_place_nothing_is_taken_away(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"notebook\.rehearsal_without_backup\("):
        colab.rehearse_disconnect(configured(tmp_path), at_step=1)
