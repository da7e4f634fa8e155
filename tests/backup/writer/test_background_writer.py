"""Versions are committed by a helper process, and by this one where the helper dies."""

import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.writer.background_writer import BackgroundWriter
from infrastructure.core.errors import StorageError
from infrastructure.core.lock import is_held
from tests.faults.store_history import step_that_loads, tensors_at
from tests.forks import outcome_of_forked

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[BackgroundWriter]:
    made = BackgroundWriter(tmp_path / "store", Retention(2))
    yield made
    made.close()


def begin(writer: BackgroundWriter, step: int) -> None:
    writer.begin(tensors_at(step), {"step": step}, step=step)


def helper_of(writer: BackgroundWriter) -> int:
    assert writer._helper is not None
    return writer._helper.pid


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def test_what_goes_in_comes_out(writer: BackgroundWriter) -> None:
    for step in (1, 2, 3):
        begin(writer, step)
        assert writer.collect(wait=True) == Store(writer.root).versions()[0]
        assert step_that_loads(FileOperations(), writer.root) == step
    assert len(Store(writer.root).versions()) == 2
    assert writer.collect(wait=True) is None


def test_the_training_may_change_its_tensors_at_once(writer: BackgroundWriter) -> None:
    weights = bytearray(struct.pack("<4f", 1, 2, 3, 4))
    writer.begin({"model/a": TensorBytes("F32", (4,), weights)}, {}, step=1)
    weights[:] = bytes(16)
    name = writer.collect(wait=True)
    assert name is not None
    store = Store(writer.root)
    assert struct.unpack("<4f", dict(store.load(store.read(name)))["model/a"].data) == (1, 2, 3, 4)


def test_larger_and_smaller_states(writer: BackgroundWriter) -> None:
    for num_layers in (1, 5000, 2):
        tensors = tensors_at(7, num_layers)
        writer.begin(tensors, {}, step=7)
        name = writer.collect(wait=True)
        assert name is not None
        store = Store(writer.root)
        assert set(dict(store.load(store.read(name)))) == set(tensors)


def test_as_many_tensors_of_other_sizes_and_names(writer: BackgroundWriter) -> None:
    """Of each version every byte is compared, where the ones before it lay elsewhere."""
    for number, (names, sizes) in enumerate(
        [("abc", (16, 8, 4)), ("abc", (4, 8, 16)), ("abc", (4, 8, 17)), ("abd", (4, 8, 17))], 1
    ):
        state = {
            f"model/{name}": TensorBytes("U8", (size,), bytes(range(number, number + size)))
            for name, size in zip(names, sizes, strict=True)
        }
        writer.begin(state, {}, step=number)
        version = writer.collect(wait=True)
        assert version is not None
        store = Store(writer.root)
        loaded = {key: bytes(one.data) for key, one in store.load(store.read(version))}
        assert loaded == {key: bytes(one.data) for key, one in state.items()}


def test_a_commit_is_reported_when_it_is_done_and_not_before(writer: BackgroundWriter) -> None:
    begin(writer, 1)
    first = writer.collect(wait=True)
    stop(helper_of(writer))
    begin(writer, 2)
    assert writer.collect() is None
    assert Store(writer.root).versions() == [first]
    os.kill(helper_of(writer), signal.SIGCONT)
    assert writer.collect(wait=True) is not None


def test_a_busy_helper_does_not_hold_the_training_up(writer: BackgroundWriter) -> None:
    """What it is told of 5000 layers is longer than a pipe holds; a training would wait."""
    begin(writer, 1)
    writer.collect(wait=True)
    stop(helper_of(writer))
    writer.begin(tensors_at(7, 5000), {}, step=7)
    os.kill(helper_of(writer), signal.SIGCONT)
    assert writer.collect(wait=True) is not None


@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_dead_helper_costs_nothing(
    writer: BackgroundWriter, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    begin(writer, 1)
    writer.collect(wait=True)
    pid = helper_of(writer)
    if moment == "while":
        stop(pid)
        begin(writer, 2)
    os.kill(pid, signal.SIGKILL)
    if moment == "before":
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        begin(writer, 2)
    assert writer.collect(wait=True) is not None
    assert step_that_loads(FileOperations(), writer.root) == 2
    gone = "backup.writer_process_gone(reason=core.killed_by_signal(signal=SIGKILL))"
    assert (gone in caplog.text) == (moment == "while")
    begin(writer, 3)
    assert writer.collect(wait=True) is not None
    assert step_that_loads(FileOperations(), writer.root) == 3


def test_what_the_helper_cannot_write_is_raised_here(writer: BackgroundWriter) -> None:
    begin(writer, 1)
    writer.collect(wait=True)
    (writer.root / "versions").rename(writer.root / "elsewhere")
    (writer.root / "versions").write_text("")
    begin(writer, 2)
    with pytest.raises(StorageError, match="Not a directory"):
        writer.collect(wait=True)
    (writer.root / "versions").unlink()
    (writer.root / "elsewhere").rename(writer.root / "versions")
    begin(writer, 3)
    assert writer.collect(wait=True) is not None


def test_what_cannot_be_written_at_the_end_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = BackgroundWriter(tmp_path / "store", Retention(2))
    (tmp_path / "store").mkdir()
    (tmp_path / "store/versions").write_text("")
    begin(writer, 1)
    pid = helper_of(writer)
    writer.close()
    writer.close()
    assert "backup.last_checkpoint_not_written(error=" in caplog.text
    assert f"File exists: '{tmp_path}/store/versions'" in caplog.text
    assert not psutil.pid_exists(pid)
    assert is_held(tmp_path / "store/lock") is False


def test_signals_for_the_training_do_not_end_it(writer: BackgroundWriter) -> None:
    begin(writer, 1)
    writer.collect(wait=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(helper_of(writer), number)
    begin(writer, 2)
    before = helper_of(writer)
    writer.collect(wait=True)
    assert helper_of(writer) == before
    assert os.getpgid(before) != os.getpgid(0)


KILLED = """
import os, signal, sys
from pathlib import Path
from infrastructure.backup.writer.background_writer import BackgroundWriter
from infrastructure.backup.format.retention import Retention
from tests.faults.store_history import tensors_at
writer = BackgroundWriter(Path(sys.argv[1]), Retention(2))
writer.begin(tensors_at(1), {"step": 1}, step=1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_training_handed_over_is_written(tmp_path: Path) -> None:
    root = tmp_path / "store"
    killed = outcome_of_forked([sys.executable, "-c", KILLED, str(root)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    deadline = time.monotonic() + 60
    while not Store(root).versions() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert step_that_loads(FileOperations(), root) == 1
