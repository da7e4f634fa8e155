"""G2: the power goes at any moment of saving and pruning; every state the disk may be in is tried.

Method: enumeration of crash states as in ALICE (Pillai et al., OSDI 2014).
"""

from pathlib import Path

import pytest

from infrastructure.backup.format.store import Store
from tests.faults.memory_files import MemoryFiles, states_after_power_loss
from tests.faults.store_history import History, next_save_works, step_that_loads
from tests.slow import slow


class NoFileSync(MemoryFiles):
    """A mutant: bytes are never made sure."""

    def sync_file(self, path: Path) -> None:
        return


class NoDirectorySync(MemoryFiles):
    """A mutant: names are never made sure."""

    def sync_directory(self, directory: Path) -> None:
        return


class KeepsTheWrongOnes(Store):
    """A mutant: prunes before the version that replaces the old ones is whole."""

    def commit(self, *arguments: object, **keywords: object) -> str:
        self.remove_all_but([])
        return super().commit(*arguments, **keywords)  # type: ignore[arg-type]


def lost_states(files: MemoryFiles, history: History, num_saves: int = 4) -> tuple[int, int]:
    """How many states there are, and in how many of them a committed version is lost."""
    history.play(num_saves)
    count = lost = 0
    for length, state in states_after_power_loss(files.log):
        count += 1
        found = step_that_loads(MemoryFiles(state))
        if found < history.newest_committed(length):
            lost += 1
    return count, lost


def history_of(files: MemoryFiles) -> History:
    return History(files, lambda: len(files.log))


def test_no_committed_version_is_ever_lost() -> None:
    files = MemoryFiles()
    count, lost = lost_states(files, history_of(files))
    assert count > 1000
    assert lost == 0


@slow
def test_saving_goes_on_after_any_of_them() -> None:
    files = MemoryFiles()
    history_of(files).play()
    assert all(
        next_save_works(MemoryFiles(state)) for _, state in states_after_power_loss(files.log)
    )


@pytest.mark.parametrize("mutant", [NoFileSync, NoDirectorySync])
def test_a_missing_sync_is_found(mutant: type[MemoryFiles]) -> None:
    files = mutant()
    _, lost = lost_states(files, history_of(files), num_saves=2)
    assert lost > 0


def test_pruning_too_early_is_found() -> None:
    files = MemoryFiles()
    history = History(
        files, lambda: len(files.log), lambda f: KeepsTheWrongOnes(Path("/run/checkpoints"), f)
    )
    _, lost = lost_states(files, history)
    assert lost > 0
