"""The most bytes that tensors take at once, and who holds them: exact, the same on every device."""

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NEW_PEAK = 1.01  # who holds what is looked at again when the peak has grown by so much


class TensorPeak(TorchDispatchMode):
    """Counts every storage from when an operation inside the block gives it until it is freed.

    What an operation takes for itself and gives back is not seen.

    Attributes:
        now, highest: bytes.
        at_peak: bytes by what was computed, when they were near their highest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.highest = 0
        self.at_peak: Counter[str] = Counter()
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._by_kind: Counter[str] = Counter()
        self._looked_at = 0

    def count(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """From now on, these are counted, too."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            known = self._held.get(key)
            if known is not None and known() is not None:
                continue

            def forget(_: Any, key: int = key, size: int = size, kind: str = kind) -> None:
                self._held.pop(key, None)
                self.now -= size
                self._by_kind[kind] -= size

            self._held[key] = weakref.ref(storage, forget)
            self.now += size
            self._by_kind[kind] += size
        if self.now > self.highest:
            self.highest = self.now
            if self.now > NEW_PEAK * self._looked_at:
                self._looked_at, self.at_peak = self.now, Counter(self._by_kind)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.count(made, str(func.overloadpacket))
        return result
