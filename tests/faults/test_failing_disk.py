"""G3 and G5: the disk refuses at any operation, or says yes and keeps nothing."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.objects import ObjectFiles
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from tests.faults.failing_files import ERRORS, FailingFiles, LyingFiles
from tests.faults.memory_files import Files, MemoryFiles
from tests.faults.store_history import ROOT, next_save_works, step_that_loads, tensors_at


def files_of_two_versions() -> Files:
    memory = MemoryFiles()
    store = Store(ROOT, memory)
    for step in (1, 2):
        store.commit(tensors_at(step), {"step": step}, step=step)
    return memory.files


TWO_VERSIONS = files_of_two_versions()


def save_and_prune(operations: FileOperations) -> None:
    store = Store(ROOT, operations)
    store.sweep()
    store.commit(tensors_at(3), {"step": 3}, step=3)
    store.remove_all_but(store.versions()[:2])


def error_of(operations: FileOperations) -> str | None:
    """What saving and pruning says; None: it worked."""
    try:
        save_and_prune(operations)
    except (StorageError, OSError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("error", ERRORS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
def test_an_error_at_any_operation_costs_nothing(error: int, stays: bool) -> None:
    counting = FailingFiles(TWO_VERSIONS)
    save_and_prune(counting)
    messages = []
    for fail_at in range(counting.count):
        failing = FailingFiles(TWO_VERSIONS, error, fail_at, stays)
        messages.append(error_of(failing))
        failing.heal()
        assert step_that_loads(failing) >= 2
        assert next_save_works(failing)
        assert not [path for path in failing.files if path.parent.name == "tmp"]
    raised = [text for text in messages if text is not None]
    assert len(raised) > counting.count // 2 > 20
    assert all(os.strerror(error) in text for text in raised)


@pytest.mark.parametrize("lie", ["nothing", "zeros", "one bit"])
def test_a_write_that_lies_is_found_at_once(lie: str) -> None:
    num_writes = 0
    while (message := error_of(lying := LyingFiles(TWO_VERSIONS, num_writes, lie))) is not None:
        num_writes += 1
        assert "backup.write_not_kept" in message
        assert step_that_loads(lying) == 2
        assert next_save_works(lying)
    assert num_writes == 4  # three classes that changed, and the manifest


def test_without_reading_back_a_lie_is_found_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what was written is believed to be there."""
    monkeypatch.setattr(ObjectFiles, "_differs", lambda *arguments: False)
    lying = LyingFiles(TWO_VERSIONS, 0, "zeros")
    assert error_of(lying) is None
    assert step_that_loads(lying) == 2


def test_too_little_room_is_reported_before_anything_is_written() -> None:
    class Full(MemoryFiles):
        def free_bytes(self, directory: Path) -> int:
            return 1000

    full = Full(TWO_VERSIONS)
    assert "backup.no_space_for_checkpoint" in str(error_of(full))
    assert full.files == TWO_VERSIONS


FILLS_THE_DISK = """
import resource, sys
from pathlib import Path
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.objects import ObjectFiles
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
store = Store(Path(sys.argv[1]))
small = {"model/a": TensorBytes("U8", (1000,), bytes(1000))}
print(store.commit(small, {}, step=1))
try:
    store.commit({"model/a": TensorBytes("U8", (100_000,), bytes(100_000))}, {}, step=2)
except StorageError as error:
    print("refused:", "File too large" in str(error))
print(store.newest()[0], len(store.versions()), len(list(Path(sys.argv[1], "tmp").iterdir())))
"""


def test_a_limit_of_the_system_itself(tmp_path: Path) -> None:
    """Not a stand-in: the kernel refuses in the middle of a write."""
    done = subprocess.run(
        [sys.executable, "-c", FILLS_THE_DISK, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    first, refused, last = done.stdout.splitlines()
    assert refused == "refused: True"
    assert last == f"{first} 1 0"
