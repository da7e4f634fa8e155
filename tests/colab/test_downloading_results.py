"""A run's model and report in one file, and the browser that may take it."""

import importlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

import colab
from colab import downloading_results, transfer
from infrastructure.core.errors import StorageError
from tests.fakes.google_colab import ColabSession


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has ended, as far as its files say."""
    directory = tmp_path / "runs" / "20261121-120000-chats-ab12"
    (directory / "final" / "base").mkdir(parents=True)
    (directory / "final" / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (directory / "final" / "base" / "config.json").write_text("{}")
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "large").write_bytes(b"x")
    for name in ("run.json", "summary.json"):
        (directory / name).write_text(json.dumps({"name": name}))
    (directory / "report.html").write_text("<html>report</html>")
    return directory


def test_the_newest_run_is_zipped_with_its_report_and_without_its_checkpoints(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = colab.download_results(output_dir=run.parent)
    assert path == run / f"{run.name}.zip"
    assert str(path) in capsys.readouterr().out
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            f"{run.name}/final/base/config.json",
            f"{run.name}/final/model.safetensors",
            f"{run.name}/report.html",
            f"{run.name}/run.json",
            f"{run.name}/summary.json",
        ]
        model = f"{run.name}/final/model.safetensors"
        assert archive.read(model) == (run / "final" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("named", ["id", "path"])
def test_a_run_is_named_by_id_or_path_and_again_gives_the_same(run: Path, named: str) -> None:
    name = run.name if named == "id" else str(run)
    first = colab.download_results(name, output_dir=run.parent).read_bytes()
    assert colab.download_results(name, output_dir=run.parent).read_bytes() == first


def test_a_download_without_its_base_model_names_the_way_to_a_whole_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "final" / "adapter_config.json").write_text("{}")
    colab.download_results(run)
    assert "notebook.only_adapter_zipped" not in capsys.readouterr().out  # it has its base
    shutil.rmtree(run / "final" / "base")
    colab.download_results(run)
    assert "notebook.only_adapter_zipped" in capsys.readouterr().out


def test_the_browser_is_given_the_file(
    run: Path, colab_session: ColabSession, capsys: pytest.CaptureFixture[str]
) -> None:
    path = colab.download_results(run)
    assert [call["filename"] for call in colab_session.calls("download")] == [str(path)]
    assert "notebook.browser_download_pending" in capsys.readouterr().out


def test_what_is_too_large_for_a_browser_stays_with_advice(
    run: Path,
    colab_session: ColabSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(downloading_results, "MOST_FOR_BROWSER_BYTES", 100)
    path = colab.download_results(run)
    assert colab_session.calls("download") == []
    assert path.is_file()
    assert "notebook.too_large_for_browser" in (capsys.readouterr().out)


@pytest.mark.usefixtures("colab_session")
def test_a_page_that_fails_costs_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = importlib.import_module("google.colab._message")

    def fail(filename: str) -> None:
        raise message.MessageError("no page")

    monkeypatch.setattr(importlib.import_module("google.colab.files"), "download", fail)
    assert colab.download_results(run).is_file()
    assert "notebook.browser_download_failed" in capsys.readouterr().out


def test_a_run_without_a_model_is_refused_with_what_to_do(run: Path) -> None:
    for path in sorted((run / "final").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=rf"notebook\.no_trained_model_yet\(run={run.name}\)"):
        colab.download_results(run)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"monitoring\.no_runs"):
        colab.download_results(output_dir=tmp_path)


def test_a_full_disk_is_reported_before_anything_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "disk_free_bytes", lambda folder: transfer.SPARE_BYTES)
    with pytest.raises(StorageError, match=r"notebook\.not_enough_space\("):
        colab.download_results(run)
    assert not list(run.glob("*.zip"))
