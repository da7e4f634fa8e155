"""Which names a training takes for versions of runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record, write_sums
from infrastructure.deployment import export, version_model
from infrastructure.deployment.export import final_step, version_of_model
from infrastructure.deployment.version_model import named_model, use_versions
from infrastructure.run.directory import RunDirectory


def test_a_name_that_is_of_no_version_stays_as_it_is(tmp_path: Path) -> None:
    """A folder of that name in the output folder is not what was named."""
    for name in ("tiny/student", "tiny/teacher"):
        (tmp_path / name).mkdir(parents=True)
    config = DeploymentConfig(
        output_dir=str(tmp_path),
        **{"model.name": "tiny/student", "training.teacher": "tiny/teacher"},
    )
    use_versions(config)
    assert (config.model.name, config.training.teacher) == ("tiny/student", "tiny/teacher")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that ended with the model of its step 4, the best one, after step 9."""
    run = RunDirectory(tmp_path / "runs/20260101-120000-mine")
    run.path.mkdir(parents=True)
    run.run_file.write_text("{}")
    write_record(run.summary_file, {"status": "finished", "steps": 9, "final_step": 4})
    run.final.mkdir()
    for module in (export, version_model):
        monkeypatch.setattr(module, "step_of", lambda path: int(path.stem.partition("-")[0]))
    return run


def checkpoint_of(run: RunDirectory, step: int, letters: str = "ab") -> Path:
    return run.checkpoints / f"versions/{step:012d}-sha256-{letters * 32}.json"


def test_the_model_of_a_finished_run_is_of_its_best_step(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {step: checkpoint_of(run, step) for step in (4, 9)}
    verified: list[Path] = []
    manager = SimpleNamespace(newest=lambda: versions[9])
    monkeypatch.setattr(export, "CheckpointManager", lambda folder: manager)
    monkeypatch.setattr(export, "by_step", lambda store: versions)
    monkeypatch.setattr(export, "verify", verified.append)
    assert final_step(run) == 4
    assert version_of_model(run) == versions[4]
    assert verified == [versions[4]]
    write_record(run.summary_file, {"status": "finished", "steps": 9})
    assert (final_step(run), version_of_model(run)) == (9, versions[9])
    del versions[4]
    write_record(run.summary_file, {"status": "finished", "steps": 9, "final_step": 4})
    assert version_of_model(run) == versions[9], "that of step 4 is no more"
    write_record(run.summary_file, {"status": "stopped", "steps": 4})
    assert final_step(run) is None


def test_the_model_of_a_version_is_written_once_and_again_where_it_was_damaged(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Path | None] = {
        "9": checkpoint_of(run, 9),
        "8": checkpoint_of(run, 8, "cd"),
        "4": checkpoint_of(run, 4),
    }
    written: list[tuple[Path | None, Path]] = []

    def export_it(of: RunDirectory, checkpoint: Path | None, folder: Path) -> None:
        assert of == run
        folder.mkdir()
        (folder / "weights").write_text(str(checkpoint))
        write_sums(folder)
        written.append((checkpoint, folder))

    monkeypatch.setattr(version_model, "export_checkpoint", export_it)
    monkeypatch.setattr(
        version_model, "find_run", lambda name, _: (run, found[name.partition("@")[2]])
    )
    output_dir = run.path.parent
    assert named_model("mine@4", output_dir) == str(run.final)
    folder = named_model("mine@9", output_dir)
    assert Path(folder) == run.path / "step-9-abababab"
    assert named_model("mine@9", output_dir) == folder
    assert written == [(found["9"], Path(folder))]
    assert Path(named_model("mine@8", output_dir)).name == "step-8-cdcdcdcd"
    (Path(folder) / "weights").write_text("other weights")
    assert named_model("mine@9", output_dir) == folder
    (Path(folder) / "SHA256SUMS").write_text("torn")
    assert named_model("mine@9", output_dir) == folder
    assert [path for _, path in written].count(Path(folder)) == 3
    config = DeploymentConfig(
        output_dir=str(output_dir), **{"model.name": "mine@9", "training.teacher": "mine@4"}
    )
    use_versions(config)
    assert (config.model.name, config.training.teacher) == (folder, str(run.final))


def test_a_name_that_is_of_no_run_or_of_a_whole_run_has_nothing_to_export(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_model, "export_checkpoint", None)
    output_dir = run.path.parent
    assert named_model(run.run_id, output_dir) == str(run.path)
    assert named_model("owner/name", output_dir) == "owner/name"
    assert named_model(str(output_dir / "final"), output_dir) == str(run.final)
    with pytest.raises(ValueError, match=r"unknown_run_of_checkpoint\(name=nothing@7, run=nothing"):
        named_model("nothing@7", output_dir)
    monkeypatch.setattr(version_model, "find_run", lambda name, _: (run, None))
    assert named_model("mine@best", output_dir) == str(run.path)
