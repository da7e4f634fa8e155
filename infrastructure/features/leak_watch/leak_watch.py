"""Detection of memory leaks: memory that grows steadily, and the line of code that holds it.

Watching costs almost nothing: one reading every few seconds. If memory has grown through two whole
windows of readings, and about as much in the second as in the first, live tensors are counted for a
few readings, and then Python's `tracemalloc` runs for a few more. The lines whose objects
accumulate are reported. Each of these two methods makes a step a fifth longer; both at once would
make it several times as long.

"Steadily" is Kendall's rank correlation with time (Mann 1945): nearly every later reading is larger
than nearly every earlier one. Memory that rises and falls, or jumps once, does not count; nor do
caches that fill up, which grow less and less.
"""

import gc
import sys
import tracemalloc
import weakref
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infrastructure.core.hardware import MIB
from infrastructure.core.messages import phrase

WINDOW = 12  # readings
NUM_TRACED = 6  # readings, half of them for each
MIN_CORRELATION = 0.8
MIN_GROWTH_SHARE = 0.02  # of the memory at the start
MIN_GROWTH_BYTES = 32 * MIB
MIN_SHARE_OF_LAST = 0.8  # a leak continues as it began
FRAMES_KEPT = 12
NUM_LINES = 3
FIRST_LOOK = 10_000
OWN_FOLDER = str(Path(__file__).parent)
TORCH_FOLDER = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Leak:
    """A steady growth of memory.

    Attributes:
        bytes_per_step: the bytes by which memory grows per step.
        lines: pairs of `file:line` and the bytes that accumulated during tracing, the largest
            first; empty if no Python object holds the memory.
    """

    bytes_per_step: float
    lines: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        text = phrase("leak_watch.rate", mib_per_step=self.bytes_per_step / MIB)
        if not self.lines:
            return phrase("leak_watch.outside_python", growth=text)
        where = "; ".join(f"{line} ({size / MIB:.1f} MiB)" for line, size in self.lines)
        return phrase("leak_watch.origin", growth=text, lines=where)


class LiveTensors(TorchDispatchMode):
    """A record of the tensors that are created inside the block and not freed yet.

    Storages are counted exactly instead of sampled, with the same result on a CPU and on a GPU.
    Each belongs to the nearest line outside of torch; for a backward pass, the line that called it.

    Python's weak references are used, because torch's own `StorageWeakRef` prevents storages from
    being freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[weakref.ref[torch.UntypedStorage], str, int, int]] = []
        self._next_look = FIRST_LOOK
        self._age = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        given = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = {
            _address(t): t.untyped_storage()
            for t in tree_leaves(result)
            if isinstance(t, torch.Tensor) and _address(t) not in given
        }
        if made:
            line = _line_outside_torch()
            for storage in made.values():
                self._note(line, storage)
        return result

    def _note(self, line: str, storage: torch.UntypedStorage) -> None:
        self._made.append((weakref.ref(storage), line, storage.nbytes(), self._age))
        if len(self._made) >= self._next_look:
            self._made = [one for one in self._made if one[0]() is not None]
            self._next_look = max(FIRST_LOOK, 2 * len(self._made))

    def grow_older(self) -> None:
        """Mark all tensors created so far as old, for `bytes_of_line(is_old=True)`."""
        self._age += 1

    def bytes_of_line(self, is_old: bool = False) -> Counter[str]:
        """Return `file:line` → the bytes of tensors created there that are not freed yet.

        Args:
            is_old: count only tensors created before the last `grow_older`.
        """
        sizes: Counter[str] = Counter()
        for reference, line, size, age in self._made:
            if reference() is not None and not (is_old and age == self._age):
                sizes[line] += size
        return sizes


def _address(tensor: torch.Tensor) -> tuple[int, object]:
    return tensor.untyped_storage().data_ptr(), tensor.device


def _line_outside_torch() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith((TORCH_FOLDER, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"


@dataclass
class LeakWatch:
    """A leak detector, which gets readings of the memory in use and reports at most one leak.

    Args:
        min_growth_bytes: growth over a window that is smaller than this is not reported.
        counts_tensors: whether to find the lines that create tensors. This must be off for a
            compiled model, because its code would run operation by operation.
    """

    window: int = WINDOW
    min_growth_bytes: int = MIN_GROWTH_BYTES
    counts_tensors: bool = True
    is_reported: bool = False
    _readings: deque[tuple[int, int]] = field(default_factory=deque)
    _traced_from: int | None = None
    _num_traced: int = 0
    _last_growth: int | None = None  # of the window before, if it grew steadily
    _tensors: LiveTensors | None = None
    _held: Counter[str] = field(default_factory=Counter)

    def add(self, step: int, used_bytes: int) -> Leak | None:
        """Record one reading; return a `Leak` if tracing has just confirmed one, else None."""
        if self.is_reported:
            return None
        self._readings.append((step, used_bytes))
        while len(self._readings) > self.window:
            self._readings.popleft()
        if self._traced_from is None:
            self._suspect(step)
            return None
        self._num_traced += 1
        if self._num_traced >= NUM_TRACED:
            return self._conclude()
        if self._tensors is not None and self._num_traced < NUM_TRACED // 2:
            self._tensors.grow_older()
        elif self._tensors is not None:
            self._held = self._tensors.bytes_of_line(is_old=True)
            self._forget_tensors()
            tracemalloc.start(FRAMES_KEPT)
        return None

    def stop(self) -> None:
        """End the tracing, if it is running."""
        if self._traced_from is not None and self._tensors is None:
            tracemalloc.stop()
        self._traced_from = None
        self._forget_tensors()

    def _forget_tensors(self) -> None:
        if self._tensors is not None:
            self._tensors.__exit__(None, None, None)
            self._tensors = None

    def _growth(self) -> int:
        return self._readings[-1][1] - self._readings[0][1]

    def _grows(self) -> bool:
        sizes = [size for _, size in self._readings]
        if len(sizes) < self.window:
            return False
        growth = self._growth()
        enough = max(self.min_growth_bytes, MIN_GROWTH_SHARE * sizes[0])
        return growth >= enough and kendall(sizes) >= MIN_CORRELATION

    def _suspect(self, step: int) -> None:
        """Start tracing if memory grew in this window as much as in the one before."""
        if len(self._readings) < self.window:
            return
        if not self._grows():
            self._last_growth = None
        elif self._last_growth and self._growth() >= MIN_SHARE_OF_LAST * self._last_growth:
            self._start_tracing(step)
        else:
            self._last_growth = self._growth()
            self._readings.clear()

    def _start_tracing(self, step: int) -> None:
        if tracemalloc.is_tracing():  # another tracer's, which would end with this one
            self.is_reported = True
            return
        self._traced_from, self._num_traced = step, 0
        if self.counts_tensors:
            self._tensors = LiveTensors()
            self._tensors.__enter__()
        else:
            tracemalloc.start(FRAMES_KEPT)

    def _conclude(self) -> Leak | None:
        still_grows = self._grows()
        lines = largest_lines(self._held) if still_grows else ()
        self.stop()
        if not still_grows:
            self._readings.clear()
            self._last_growth = None
            return None
        self.is_reported = True
        (first_step, first), (last_step, last) = self._readings[0], self._readings[-1]
        return Leak((last - first) / max(1, last_step - first_step), lines)


def kendall(values: list[int]) -> float:
    """Return Kendall's rank correlation of values with their order: 1 if they always increase."""
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
    return sum((b > a) - (b < a) for a, b in pairs) / len(pairs)


def largest_lines(tensors: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Return the lines whose objects, created during tracing, take most memory.

    Objects that have been freed do not count.
    """
    gc.collect()
    sizes = Counter(tensors)
    for trace in tracemalloc.take_snapshot().traces:
        sizes[_own_line(trace.traceback)] += trace.size
    sizes.pop("", None)
    return tuple(sizes.most_common(NUM_LINES))


def _own_line(traceback: tracemalloc.Traceback) -> str:
    """Return the innermost line of a traceback that is user code.

    Python itself, installed packages and this module do not count as user code.
    """
    for frame in reversed(traceback):
        name = frame.filename
        if not name.startswith((sys.prefix, sys.base_prefix, OWN_FOLDER, "<")):
            return f"{name}:{frame.lineno}"
    return ""
