"""A run's small files travel in its versions."""

from pathlib import Path

import pytest

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.state.run_files import PIECE_BYTES, read_run_files, restore_run_files
from infrastructure.core.errors import CheckpointError


def files_in(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "tokenizer").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    (run / "run.json").write_text("{}")
    (run / "metrics.csv").touch()
    (run / "lock").touch()
    (run / "training_args.bin").write_text("somebody else's")
    (run / "metrics.jsonl").write_bytes(b"x" * (2 * PIECE_BYTES + 5))
    (run / "tokenizer" / "tokenizer.json").write_text("tokens")
    (run / "checkpoints" / "large").write_text("not taken")
    return run


def test_there_and_back(run: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    name = store.commit(read_run_files(run), {}, step=1)
    restore_run_files(store, store.read(name), tmp_path / "copy")
    expected = files_in(run)
    assert files_in(tmp_path / "copy") == {
        name: expected[name]
        for name in ("metrics.csv", "metrics.jsonl", "run.json", "tokenizer/tokenizer.json")
    }


def test_a_file_that_grows_is_stored_once(run: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.commit(read_run_files(run), {}, step=1)
    before = sum(p.stat().st_size for p in (tmp_path / "store/objects").rglob("*") if p.is_file())
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"one more line\n")
    store.commit(read_run_files(run), {}, step=2)
    after = sum(p.stat().st_size for p in (tmp_path / "store/objects").rglob("*") if p.is_file())
    assert after - before < 1000


def test_a_log_may_be_rotated_meanwhile(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = run / "logs" / "system" / "system.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("a line")
    read_bytes = Path.read_bytes

    def rotated_just_before(path: Path) -> bytes:
        if path == log:
            path.rename(path.with_name("system.1.jsonl"))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", rotated_just_before)
    names = read_run_files(run)
    assert "files/run.json@000000000" in names
    assert not any("system" in name for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "files/../out@000000000",
        "files//etc/x@000000000",
        "files/a/../../b@000000000",
        "files/.hidden@000000000",
        "files/a",
        "files/a@5",
        "files/a\\b@000000000",
        "files/final/model.bin@000000000",
        "files/@000000000",
    ],
)
def test_a_hostile_name_is_refused(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    version = store.commit({name: TensorBytes("U8", (1,), b"x")}, {}, step=1)
    with pytest.raises(CheckpointError, match="file with the name"):
        restore_run_files(store, store.read(version), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_gap_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    version = store.commit({"files/run.json@000000009": TensorBytes("U8", (1,), b"x")}, {}, step=1)
    with pytest.raises(CheckpointError, match="gap at byte 0"):
        restore_run_files(store, store.read(version), tmp_path / "copy")
