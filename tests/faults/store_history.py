"""A history of saves and prunings in a store, and what must hold at any moment of it."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store

ROOT = Path("/run/checkpoints")


def tensors_at(step: int, num_layers: int = 3) -> dict[str, TensorBytes]:
    """A small state: weights and optimizer differ at each step, the frozen layer never does."""
    found = {"frozen/base": TensorBytes("F32", (16,), struct.pack("<16f", *range(16)))}
    for layer in range(num_layers):
        numbers = [step * 100 + layer * 10 + i / 8 for i in range(8)]
        found[f"model/layer{layer}"] = TensorBytes("F32", (2, 4), struct.pack("<8f", *numbers))
        found[f"optimizer/{layer}.exp_avg"] = TensorBytes("F32", (8,), struct.pack("<8f", *numbers))
    found["small/step"] = TensorBytes("I64", (), struct.pack("<q", step))
    return found


@dataclass
class History:
    """Saves at steps 1, 2, …, each followed by a pruning to the newest `keep`.

    Attributes:
        committed: (length of the log when `commit` returned, step).
        pruned: (length of the log when the pruning began, steps that it keeps).
    """

    operations: FileOperations
    log_length: Callable[[], int]
    make_store: Callable[[FileOperations], Store] = lambda operations: Store(ROOT, operations)
    committed: list[tuple[int, int]] = field(default_factory=list)

    def play(self, num_saves: int = 4, keep: int = 2) -> None:
        store = self.make_store(self.operations)
        for step in range(1, num_saves + 1):
            if step == num_saves:
                store = self.make_store(self.operations)  # another process goes on
                store.sweep()
            store.commit(tensors_at(step), {"step": step}, step=step)
            self.committed.append((self.log_length(), step))
            store.remove_all_but(store.versions()[:keep])

    def newest_committed(self, log_length: int) -> int:
        """The step of the newest version that was committed when the log had this length."""
        return max((step for length, step in self.committed if length <= log_length), default=0)


def step_that_loads(operations: FileOperations, root: Path = ROOT) -> int:
    """The step that a resume would go on from (0: none), after comparing all its bytes.

    Raises:
        AssertionError: it loads and is wrong.
    """
    store = Store(root, operations)
    name, _ = store.newest()
    if name is None:
        return 0
    manifest = store.read(name)
    expected = tensors_at(manifest.step)
    loaded = dict(store.load(manifest))
    assert manifest.values == {"step": manifest.step}
    assert set(loaded) == set(expected)
    for tensor, found in loaded.items():
        assert (found.dtype, found.shape) == (expected[tensor].dtype, expected[tensor].shape)
        assert bytes(found.data) == bytes(expected[tensor].data)
    return manifest.step


def next_save_works(operations: FileOperations, root: Path = ROOT) -> bool:
    """Whether the run can go on saving in what was left behind."""
    store = Store(root, operations)
    store.sweep()
    store.commit(tensors_at(99), {"step": 99}, step=99)
    return step_that_loads(operations, root) == 99
