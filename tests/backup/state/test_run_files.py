"""A run's small files travel in its versions."""

import re
from pathlib import Path

import pytest

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.state import run_files
from infrastructure.backup.state.run_files import (
    PIECE_BYTES,
    joined_pieces,
    read_run_files,
    restore_run_files,
)
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
        f"files/{'long' * 25}",
    ],
)
def test_a_hostile_name_is_refused(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    version = store.commit({name: TensorBytes("U8", (1,), b"x")}, {}, step=1)
    with pytest.raises(CheckpointError) as raised:
        restore_run_files(store, store.read(version), tmp_path / "copy")
    assert str(raised.value) == f"backup.unknown_file_in_checkpoint(name={name[:80]})"
    assert not (tmp_path / "copy").exists()


TAKEN = [
    *("run.json", "before.json", "checks.json", "forecast.json", "quantum.json"),
    *("stackwise.json", "metrics.jsonl", "quarantine.jsonl", "metrics.csv"),
    *("tokenizer/a.json", "tokenizer/chat_template.jinja", "tokenizer/merges.txt"),
    *("tokenizer/tokenizer.model", "tokenizer/x-1.0+a.tiktoken"),
    *("tensorboard/events.out.tfevents.1732.host.1.0", "logs/run.log", "logs/run.jsonl"),
    *("logs/system/system.jsonl", "logs/system/errors.log"),
]
LEFT = [
    *("summary.json", "report.html", "model.safetensors", "run.json.part", "a/run.json"),
    *("tokenizer/tokenizer.py", "tokenizer/a/b.json", "tokenizer/.json", "logs/a/b/c.log"),
    *("logs/system/system.json", "tensorboard/other", "lock", "logs/.hidden.log"),
]


def test_what_a_run_is_made_of_is_taken_and_nothing_else(tmp_path: Path) -> None:
    for name in (*TAKEN, *LEFT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "logs" / "linked.log").symlink_to(tmp_path / "run.json")
    (tmp_path / "logs" / "folder.log").mkdir()
    tensors = read_run_files(tmp_path)
    assert {name: bytes(one.data).decode() for name, one in tensors.items()} == {
        f"files/{name}@000000000": name for name in TAKEN
    }


def test_a_file_is_cut_into_pieces_and_too_large_a_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "PIECE_BYTES", 10)
    monkeypatch.setattr(run_files, "LARGEST_BYTES", 25)
    content = bytes(range(26))
    (tmp_path / "metrics.jsonl").write_bytes(content[:25])
    (tmp_path / "metrics.csv").write_bytes(content)
    (tmp_path / "quarantine.jsonl").write_bytes(content[:20])
    assert {name: bytes(one.data) for name, one in read_run_files(tmp_path).items()} == {
        "files/metrics.jsonl@000000000": content[:10],
        "files/metrics.jsonl@000000010": content[10:20],
        "files/metrics.jsonl@000000020": content[20:25],
        "files/quarantine.jsonl@000000000": content[:10],
        "files/quarantine.jsonl@000000010": content[10:20],
    }


def test_a_damaged_copy_is_named_and_the_others_come_back(run: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.commit(read_run_files(run), {}, step=1)
    (run / "metrics.csv").write_text("step\n")
    manifest = store.read(store.commit(read_run_files(run), {}, step=2))
    pack = manifest.packs[manifest.tensors["files/metrics.csv@000000000"].pack]
    store.objects.path_of(pack.hash).write_bytes(b"damaged")
    lost = restore_run_files(Store(tmp_path / "store"), manifest, tmp_path / "copy")
    missing = {*files_in(run)} - {*files_in(tmp_path / "copy")}
    assert "metrics.csv" in missing
    named = [re.match(r"backup\.run_file_not_restored\(path=([^,]+),", text) for text in lost]
    assert sorted(missing) == sorted([each[1] for each in named if each] + NOT_TAKEN)
    assert (tmp_path / "copy" / "metrics.jsonl").read_bytes() == b"x" * (2 * PIECE_BYTES + 5)


NOT_TAKEN = ["checkpoints/large", "lock", "training_args.bin"]


def test_a_gap_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    version = store.commit({"files/run.json@000000009": TensorBytes("U8", (1,), b"x")}, {}, step=1)
    with pytest.raises(CheckpointError, match=r"backup\.gap_in_run_file.*offset=0"):
        restore_run_files(store, store.read(version), tmp_path / "copy")
    pieces = {"files/a@000000000": b"12", "files/a@000000002": b"345", "files/a@000000006": b"6"}
    with pytest.raises(CheckpointError, match=r"gap_in_run_file\(path=a, offset=5\)"):
        joined_pieces("a", pieces)
    del pieces["files/a@000000006"]
    assert joined_pieces("a", dict(reversed(pieces.items()))) == b"12345"
