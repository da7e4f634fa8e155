"""The helper's work on one message, and the lock under which it is done."""

import io
import json
import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.writer import writer_process
from infrastructure.backup.writer.writer_process import (
    LOCK_FILE,
    NICENESS,
    commit_message,
    main,
    only_writer,
)
from infrastructure.core.lock import is_held

A, B = b"\1\2\3\4\5\6\7\10", b"\11\12\13"


def memory_of(step: int, **facts: object) -> tuple[mmap.mmap, int, int]:
    """Two tensors between other bytes, then the message about them and its place."""
    begin = 3
    places = [
        ["model/a", "I16", [2, 2], begin, len(A)],
        ["model/b", "U8", [3], begin + len(A) + 2, len(B)],
    ]
    rest = {"values": {"step": step}, "facts": {"step": step, **facts}}
    text = json.dumps([places, rest]).encode()
    data = b"\0" * begin + A + b"\0\0" + B + b"??" + text + b"??"
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory, data.index(text), len(text)


def test_a_message_is_written_as_one_checkpoint_and_old_ones_go(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.prepare()
    (store.root / "tmp/half").write_bytes(b"of a killed writer")
    answers = [
        commit_message(store.root, Retention(2), *memory_of(1)),
        commit_message(store.root, Retention(2), *memory_of(2)),
        commit_message(
            store.root, Retention(2), *memory_of(3, kind="stopped", healthy=True, score=0.5)
        ),
    ]
    names = [answer["name"] for answer in answers]
    assert store.versions() == names[:0:-1]
    manifest = store.read(names[2])
    facts = manifest.step, manifest.kind, manifest.score, manifest.values
    assert facts == (3, "stopped", 0.5, {"step": 3})
    found = {name: (t.dtype, t.shape, bytes(t.data)) for name, t in store.load(manifest)}
    assert found == {"model/a": ("I16", (2, 2), A), "model/b": ("U8", (3,), B)}
    assert [*(store.root / "tmp").iterdir()] == []


def test_what_cannot_be_written_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (problem,) = commit_message(tmp_path / "file/store", Retention(), *memory_of(1)).items()
    assert problem[0] == "error"
    assert "Not a directory" in problem[1]
    assert str(tmp_path / "file/store") in problem[1]


def test_a_writer_is_alone_as_long_as_it_writes(tmp_path: Path) -> None:
    lock = tmp_path / "deep/store" / LOCK_FILE

    def fail() -> None:
        with only_writer(lock.parent):
            assert is_held(lock)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert is_held(lock) is False


def test_each_line_is_answered_at_a_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (memory, *place), calls = memory_of(7), []
    (tmp_path / "memory").write_bytes(memory[:])
    line = b"%d %d\n" % tuple(place)
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(line * 3)))
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(os, "nice", calls.append)
    monkeypatch.setattr(writer_process, "ignore_stop_signals", lambda: calls.append("signals"))
    with (tmp_path / "memory").open("r+b") as file:
        main(tmp_path / "store", Retention(2), file.fileno())
    answers = [json.loads(text)["name"] for text in output.getvalue().splitlines()]
    assert calls == ["signals", NICENESS]
    store = Store(tmp_path / "store")
    assert [*reversed(answers)] == store.versions(), "of one step all stay"
    assert {store.read(name).step for name in answers} == {7}
