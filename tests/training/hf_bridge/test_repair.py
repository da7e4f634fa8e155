"""A Trainer's run with one damaged file: the same script brings it back, or names it."""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from infrastructure.backup.format.store import Store
from infrastructure.core.checksums import damaged_files, read_record
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.extensions.extension_hooks import Event
from tests.training.hf_bridge.test_callback import At, run_of
from tests.training.hf_bridge.tiny_trainer import train, weights

STEPS, STOPPED_AT = 4, 2
OPTIONS = {"max_steps": STEPS}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, torch.Tensor]]:
    """A folder with a run that was stopped, and with the same one finished; its weights."""
    folder = tmp_path_factory.mktemp("made")
    stop = At(Event.AFTER_BACKWARD, STOPPED_AT - 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    train(folder, hooks=[stop], **OPTIONS)
    shutil.copytree(folder / "runs", folder / "stopped")
    trainer, _, _ = train(folder, **OPTIONS)
    (folder / "runs").rename(folder / "finished")
    yield folder, weights(trainer.model)
    shutil.rmtree(folder)


def again(made: tuple[Path, torch.Tensor], state: str, damage: Callable[[Path], None]) -> str:
    """What the same script says after the damage; its weights are compared."""
    folder, expected = made
    shutil.rmtree(folder / "runs", ignore_errors=True)
    shutil.copytree(folder / state, folder / "runs")
    damage(run_of(folder))
    trainer, _, lines = train(folder, **OPTIONS)
    assert torch.equal(weights(trainer.model), expected)
    run = run_of(folder)
    assert read_record(run / "run.json")["run_id"] == "tiny"
    assert damaged_files(run / "final") == []
    records = [r for r in read_metrics(run / "metrics.jsonl") if "loss" in r]
    whole = [r for r in read_metrics(folder / "finished/tiny/metrics.jsonl") if "loss" in r]
    assert [(r["step"], r["loss"]) for r in records] == [(r["step"], r["loss"]) for r in whole]
    assert (run / "report.html").is_file()
    return "\n".join(lines)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def object_of(run: Path, tensor_class: str) -> Path:
    store = Store(run / "checkpoints")
    manifest = store.read(store.versions()[0])
    place = next(p for n, p in manifest.tensors.items() if n.startswith(tensor_class))
    return store.objects.path_of(manifest.packs[place.pack].hash)


def test_records_and_history_come_back(made: tuple[Path, torch.Tensor]) -> None:
    def damage(run: Path) -> None:
        flip(run / "run.json")
        (run / "metrics.jsonl").write_bytes(b"")

    output = again(made, "stopped", damage)
    assert "run.json" in output
    restored = (
        "backup.run_file_restored(path=metrics.jsonl, problem=backup.run_file_content_changed()"
    )
    assert restored in output
    assert f"trainer.resuming(run=tiny, step={STOPPED_AT}," in output


def test_a_damaged_random_state_ends_only_its_own_version(
    made: tuple[Path, torch.Tensor],
) -> None:
    output = again(made, "stopped", lambda run: flip(object_of(run, "random/")))
    assert re.search(r", random\); backup\.no_other_copy\(", output)


def test_the_model_and_the_report_of_a_finished_training_come_back(
    made: tuple[Path, torch.Tensor],
) -> None:
    def damage(run: Path) -> None:
        flip(run / "final" / "model.safetensors")
        (run / "report.html").unlink()

    output = again(made, "finished", damage)
    assert "trainer.model_written_again(damaged=['model.safetensors'])" in output
    assert "trainer.run_already_finished" in output
