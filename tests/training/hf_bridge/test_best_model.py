"""The files of the best model, into a version and out of it."""

from pathlib import Path

import pytest

from infrastructure.training.hf_bridge.best_model import best_files, write_best

WEIGHTS = {
    "model.safetensors": b"\x01\x02\x03",
    "other/adapter_model.safetensors": bytes(range(256)),
}
BESIDE = {"config.json": b"{}", "other/adapter_config.json": b'{"r": 2}'}
BESIDE |= {"model.safetensors.index.json": b"[1]"}
OF_THE_TRAINING = {"optimizer.pt": b"1", "trainer_state.json": b"{}", "empty.safetensors": b""}


def folder_of(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_weights_and_configurations_come_back_and_nothing_else(tmp_path: Path) -> None:
    folder = folder_of({**WEIGHTS, **BESIDE, **OF_THE_TRAINING}, tmp_path / "checkpoint-3")
    files = best_files(str(folder))
    assert {name: content.numpy().tobytes() for name, content in files.items()} == WEIGHTS | BESIDE
    write_best(files, tmp_path / "there")
    written = [path for path in (tmp_path / "there").rglob("*") if path.is_file()]
    names = {path.relative_to(tmp_path / "there").as_posix(): path for path in written}
    assert {name: path.read_bytes() for name, path in names.items()} == WEIGHTS | BESIDE


def test_a_training_without_a_best_model_keeps_none(tmp_path: Path) -> None:
    assert best_files(None) == {}


@pytest.mark.parametrize("files", [{}, BESIDE])
def test_weights_that_are_gone_are_named(
    tmp_path: Path, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(files, tmp_path / "checkpoint-3")
    assert best_files(str(folder)) == {}
    assert f"trainer.best_model_without_weights(folder={folder})" in caplog.text
