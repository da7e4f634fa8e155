"""The small files of a run come back from the copies in its versions."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_files_repair import SEAL, RunFileRepair, read_seal, seal_of
from infrastructure.backup.repair.run_repair import Outcome, Repair
from infrastructure.backup.state.run_files import read_run_files
from infrastructure.core.checksums import read_record, write_record

WEIGHT = {"model/w": TensorBytes("U8", (1,), b"w")}
FILES = ("run.json", "tokenizer/tokenizer.json", "quarantine.jsonl", "metrics.jsonl")
FILES += (
    "metrics.csv",
    "logs/system/system.jsonl",
    "checks.json",
    "tensorboard/events.out.tfevents.1",
)


def lines(first: int, last: int) -> bytes:
    return b"".join(b'{"step": %d}\n' % step for step in range(first, last))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a version of step 3, and some lines after it."""
    for folder in ("tokenizer", "logs/system", "tensorboard"):
        (tmp_path / folder).mkdir(parents=True)
    write_record(tmp_path / "run.json", {"configuration": {"learning_rate": 0.001}})
    (tmp_path / "tokenizer/tokenizer.json").write_text('{"vocab": 3}')
    (tmp_path / "quarantine.jsonl").write_text("")
    (tmp_path / "checks.json").write_text('[{"step": 0}]')
    (tmp_path / "metrics.csv").write_text("step,loss\n1,2.5\n2,2.0\n")
    (tmp_path / "tensorboard/events.out.tfevents.1").write_bytes(b"events")
    for name in ("metrics.jsonl", "logs/system/system.jsonl"):
        (tmp_path / name).write_bytes(lines(1, 4))
    store = Store(tmp_path / "checkpoints")
    store.commit({**WEIGHT, **read_run_files(tmp_path)}, {}, step=3)
    for name in ("metrics.jsonl", "logs/system/system.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(lines(4, 6))
    return tmp_path


def repairs(run: Path) -> list[Repair]:
    return list(RunFileRepair(run, [Store(run / "checkpoints")]).steps())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])


def seal(run: Path) -> None:
    write_record(run / "summary.json", {"status": "finished", SEAL: seal_of(run)})


def test_a_whole_run_is_left_as_it_is(run: Path) -> None:
    assert repairs(run) == []
    seal(run)
    assert repairs(run) == []


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_comes_back(
    run: Path, name: str, damage: Callable[[Path], None], is_sealed: bool
) -> None:
    if is_sealed:
        seal(run)
    path, intact = run / name, (run / name).read_bytes()
    if not intact and damage is not Path.unlink:
        return
    damage(path)
    [repair] = repairs(run)
    assert repair.what == name
    assert "backup.run_file_restored(" in repair.text
    assert "step=3)" in repair.text
    has_tail = name in ("metrics.jsonl", "logs/system/system.jsonl") and damage is not flip
    assert path.read_bytes() == (lines(1, 4) if has_tail else intact)
    is_part = has_tail and is_sealed
    assert repair.outcome is (Outcome.IN_PART if is_part else Outcome.REPAIRED)
    assert ("backup.later_content_lost" in repair.text) is is_part


def test_notes_that_were_added_to_a_record_are_no_damage(run: Path) -> None:
    record = read_record(run / "run.json")
    write_record(run / "run.json", {**record, "history": [{"step": 3}]})
    assert repairs(run) == []


def test_a_record_that_somebody_has_edited_is_reported(run: Path) -> None:
    text = (run / "run.json").read_text().replace("0.001", "0.009")
    (run / "run.json").write_text(text)
    [repair] = repairs(run)
    assert "core.record_checksum_mismatch" in repair.text
    assert read_record(run / "run.json") == {"configuration": {"learning_rate": 0.001}}


def test_a_new_column_is_no_damage(run: Path) -> None:
    (run / "metrics.csv").write_text("step,loss,extra\n1,2.5,\n2,2.0,\n3,1.5,7\n")
    assert repairs(run) == []


def test_a_file_that_was_rotated_is_no_damage(run: Path) -> None:
    (run / "logs/system/system.jsonl").rename(run / "logs/system/system.1.jsonl")
    (run / "logs/system/system.jsonl").write_bytes(lines(6, 8))
    assert repairs(run) == []


def test_a_torn_last_line_is_no_damage_and_one_in_the_middle_is(run: Path) -> None:
    path = run / "metrics.jsonl"
    with path.open("ab") as file:
        file.write(b'{"step": 6')
    assert repairs(run) == []
    path.write_bytes(lines(1, 5) + b"\0\0\0\0\n" + lines(5, 6))
    [repair] = repairs(run)
    assert repair.outcome is Outcome.IN_PART
    assert "backup.later_lines_unreadable(count=1)" in repair.text
    assert path.read_bytes() == lines(1, 6)


def test_a_damaged_summary_is_reported(run: Path) -> None:
    seal(run)
    flip(run / "summary.json")
    [repair] = repairs(run)
    assert (repair.what, repair.outcome) == ("summary.json", Outcome.LOST)
    assert repair.text.startswith("backup.summary_damaged(error=core.")


def test_a_copy_that_was_damaged_before_it_was_made_is_not_used(run: Path) -> None:
    """A file may be damaged while a training goes on, and the next version copies that."""
    flip(run / "run.json")
    Store(run / "checkpoints").commit({**WEIGHT, **read_run_files(run)}, {}, step=4)
    repair = next(r for r in repairs(run) if r.what == "run.json")
    assert "backup.run_file_restored(" in repair.text
    assert "step=3)" in repair.text


def test_a_sealed_file_that_no_version_holds_is_named(run: Path) -> None:
    (run / "logs/performance").mkdir()
    (run / "logs/performance/summary.json").write_text(json.dumps({"a": 1}))
    seal(run)
    (run / "logs/performance/summary.json").write_text(json.dumps({"a": 3}))
    path = "logs/performance/summary.json"
    lost = Repair(path, Outcome.LOST, f"backup.file_damaged_after_end(path={path})")
    assert repairs(run) == [lost]
    (run / path).unlink()
    assert repairs(run) == [lost]


def test_the_seal_covers_what_has_no_checksum_and_stays_after_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ("final/model.safetensors", "final/SHA256SUMS", "report.html", "lock", "logs/a.log")
    sealed = {*FILES, "final/SHA256SUMS", "report.html", "logs/performance/summary.json"}
    for name in (*others, "logs/performance/summary.json", "tokenizer/a.model"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    (run / "tokenizer/link.json").symlink_to(run / "run.json")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    found = seal_of(run)
    assert sorted(synced) == sorted((run / name).stat().st_ino for name in found)
    assert {*found} == {*sealed, "tokenizer/a.model"} - {"run.json", "checks.json"}
    for name, digest in found.items():
        assert digest == sha256((run / name).read_bytes()).hexdigest()
    seal(run)
    assert read_seal(run) == found
    for name in ("report.html", "final/SHA256SUMS"):
        (run / name).write_text("written anew")
    assert repairs(run) == [], "these are written again, or compared elsewhere"
    (run / "summary.json").write_text("{}")
    assert read_seal(run) == {}


def edit(run: Path, name: str, data: bytes) -> None:
    (run / name).write_bytes(data)


TABLE = b"step,loss\n1,2.5\n2,2.0\n"
CHANGES: list[tuple[str, bytes, bytes | None]] = [
    # file, what it holds now, what it holds after the repair (None: it is no damage)
    ("metrics.csv", TABLE + b"3,1.5\n", None),
    ("metrics.csv", TABLE + b"3,1.", None),  # torn, as a kill leaves it
    ("metrics.csv", TABLE.replace(b"2.0", b"2.7") + b"3,1.5\n4,", TABLE + b"3,1.5\n"),
    ("metrics.csv", b"step,extra,loss\n1,,2.5\n2,4,2.7\n3,4,1.5\n", TABLE),
    ("metrics.csv", b"step,extra,loss\n1,,2.5\n2,4,2.0\n", TABLE),  # was empty at the time
    ("checks.json", b'[{"step": 0}, {"step": 3}]', None),
    ("checks.json", b'[{"step": 1}]', b'[{"step": 0}]'),
    ("checks.json", b"[]", b'[{"step": 0}]'),
    ("checks.json", b"{}", b'[{"step": 0}]'),
    ("tensorboard/events.out.tfevents.1", b"events and more", None),
    ("tensorboard/events.out.tfevents.1", b"EVENTS and more", b"events and more"),
    ("tokenizer/tokenizer.json", b'{"vocab": 3} ', b'{"vocab": 3}'),
    ("quarantine.jsonl", b"{}\n", b""),
    ("metrics.jsonl", b'{"step": 9}\n' + lines(2, 6), lines(1, 6)),
    ("metrics.jsonl", lines(1, 3), lines(1, 4)),
    ("logs/system/system.jsonl", lines(1, 5) + b"[3]\n" + lines(5, 7), lines(1, 7)),
]


PROBLEMS = [
    ("metrics.csv", b"", "lines_changed"),
    ("metrics.csv", b"\xff\n", "lines_changed"),
    ("checks.json", b"[]", "changed"),
    ("checks.json", b"[", "changed"),
    ("tokenizer/tokenizer.json", b"{}", "changed"),
    ("tensorboard/events.out.tfevents.1", b"EVENTS", "content_changed"),
    ("metrics.jsonl", lines(2, 6), "content_changed"),
    ("metrics.jsonl", lines(1, 4) + b"[3]\n", "lines_unreadable"),
    ("run.json", b"{}", "lost_checksum"),
]


@pytest.mark.parametrize(("name", "now", "problem"), PROBLEMS)
def test_each_damage_is_named_with_the_step_of_the_copy(
    run: Path, name: str, now: bytes, problem: str
) -> None:
    edit(run, name, now)
    [repair] = repairs(run)
    values = f"path={name}, problem=backup.run_file_{problem}(), step=3"
    unreadable = problem == "lines_unreadable"
    more = "backup.later_lines_unreadable(count=1)" if unreadable else ""
    outcome = Outcome.IN_PART if unreadable else Outcome.REPAIRED
    assert repair == Repair(name, outcome, f"backup.run_file_restored({values}){more}")


def test_what_is_missing_or_not_as_sealed_and_held_nowhere_is_lost(run: Path) -> None:
    seal(run)
    with (run / "metrics.csv").open("ab") as file:
        file.write(b"3,1.5\n")
    values = "path=metrics.csv, problem=backup.run_file_not_as_sealed(), step=3"
    text = f"backup.run_file_restored({values})backup.later_content_lost()"
    assert repairs(run) == [Repair("metrics.csv", Outcome.IN_PART, text)]
    shutil.rmtree(run / "checkpoints/objects")
    (run / "checks.json").unlink()
    values = "path=checks.json, problem=backup.object_is_missing()"
    lost = Repair("checks.json", Outcome.LOST, f"backup.run_file_lost({values})")
    assert [each for each in repairs(run) if each.what == "checks.json"] == [lost]


def test_a_version_of_another_release_is_no_reason_to_fail(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = {"files/of_tomorrow@000000000": TensorBytes("U8", (1,), b"x")}
    Store(run / "checkpoints").commit({**WEIGHT, **unknown}, {}, step=4)
    (run / "metrics.csv").unlink()
    assert repairs(run) == []
    name = "backup.unknown_file_in_checkpoint(name=files/of_tomorrow@000000000)"
    assert f"backup.run_files_not_compared(error={name})" in caplog.text


@pytest.mark.parametrize(("name", "now", "then"), CHANGES)
def test_what_was_added_stays_and_what_was_there_comes_back(
    run: Path, name: str, now: bytes, then: bytes | None
) -> None:
    edit(run, name, now)
    assert [repair.what for repair in repairs(run)] == ([] if then is None else [name])
    assert (run / name).read_bytes() == (now if then is None else then)


def test_of_a_list_the_oldest_entries_may_have_gone(run: Path) -> None:
    """As many as there are: the newest that the copy has is still there, or all are newer."""
    edit(run, "checks.json", b"[]")
    Store(run / "checkpoints").commit({**WEIGHT, **read_run_files(run)}, {}, step=4)
    edit(run, "checks.json", b'[{"step": 0}]')
    assert repairs(run) == []
    steps = [{"step": step} for step in range(4)]
    edit(run, "checks.json", json.dumps(steps).encode())
    Store(run / "checkpoints").commit({**WEIGHT, **read_run_files(run)}, {}, step=4)
    edit(run, "checks.json", json.dumps([*steps[2:], {"step": 8}, {"step": 9}]).encode())
    assert repairs(run) == []
    edit(run, "checks.json", json.dumps([*steps[2:], {"step": 8}]).encode())
    [repair] = repairs(run)  # fewer than there were
    assert (repair.what, repair.outcome) == ("checks.json", Outcome.REPAIRED)
    assert json.loads((run / "checks.json").read_text()) == steps


def test_a_record_that_has_lost_its_checksum_is_no_older_one(run: Path) -> None:
    intact = (run / "run.json").read_bytes()
    edit(run, "run.json", b'{"configuration": {"learning_rate": 0.009}}')
    assert [repair.what for repair in repairs(run)] == ["run.json"]
    assert (run / "run.json").read_bytes() == intact


def test_a_copy_that_is_damaged_here_is_taken_from_the_place(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints", tmp_path / "place")
    for path in (run / "checkpoints" / "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    damaged = ("metrics.jsonl", "tokenizer/tokenizer.json")
    for name in damaged:
        (run / name).unlink()
    both = RunFileRepair(run, [Store(run / "checkpoints"), Store(tmp_path / "place")])
    assert both.names("tokenizer/") == ["tokenizer/tokenizer.json"]
    assert both.restore("run.json") is None
    for name, content in zip(damaged, (lines(1, 4), b'{"vocab": 3}'), strict=True):
        repair = both.restore(name)
        assert repair is not None
        assert (repair.what, repair.outcome) == (name, Outcome.REPAIRED)
        assert (run / name).read_bytes() == content
    (run / "metrics.jsonl").unlink()
    here = RunFileRepair(run, [Store(run / "checkpoints")]).restore("metrics.jsonl")
    assert here is not None
    assert here.outcome is Outcome.LOST
    assert not (run / "metrics.jsonl").exists()


def test_a_place_that_does_not_answer_is_tried_once(run: Path, tmp_path: Path) -> None:
    class Silent(FileOperations):
        def size(self, path: Path) -> int:
            questions.append(path)
            raise OSError(errno.ENOTCONN, "not connected")

    questions: list[Path] = []
    shutil.rmtree(run / "checkpoints" / "objects")
    stores = [Store(run / "checkpoints"), Store(tmp_path / "place", Silent())]
    for name in ("metrics.jsonl", "metrics.csv", "checks.json"):
        (run / name).unlink()
    found = {repair.what: repair.outcome for repair in RunFileRepair(run, stores).steps()}
    assert found == dict.fromkeys(("metrics.jsonl", "metrics.csv", "checks.json"), Outcome.LOST)
    assert len({path.name[:64] for path in questions}) == 1
