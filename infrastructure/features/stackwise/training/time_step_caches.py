"""Selection of the activation caches to keep on disk, by time step and layer, within a budget.

Each cache gets the same part of the budget. So the content of a cache depends only on the settings
and not on other files: a run that lost some of its caches and resumes reads the same examples from
caches as before.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

from infrastructure.core.checksums import read_record
from infrastructure.core.errors import DamagedFileError, InputError
from infrastructure.core.hardware import disk_free_bytes
from infrastructure.core.json_text import JsonObject, JsonValue
from infrastructure.features.stackwise.training.activation_cache import (
    CACHES,
    FOLDER,
    IN_USE,
    KEY_FILE,
    REMOVED,
    Cache,
    CacheStatistics,
    Compute,
    OnPage,
    Pages,
    folder_bytes,
    is_unused,
    refuse_without_space,
    remove_unused,
)

_OURS = re.compile(rf"{FOLDER}[0-9a-f]{{32}}")
_REMOVED = re.compile(rf"{re.escape(REMOVED)}{FOLDER}[0-9a-f]{{32}}-[0-9a-f]{{8}}")
# The values in which the keys of one run's caches differ.
_VARYING = ("time_step", "unit", "trunk_hash")

CacheMode = Literal["stack", "rack"]


class TimeStepCaches:
    """The activation caches of one run, one for each time step and unit.

    Args:
        root: a folder for caches; other runs may use it, too.
        size: number of time steps to keep; the least recently used one is removed first. None:
            all.
        mode: "stack" removes the older units of a time step as soon as a newer one is complete,
            "rack" keeps all.
        num_time_steps, num_boundaries: numbers of time steps and of cached layers in the whole run.
        budget_bytes: budget of all kept caches together; None: no limit.
        cache: a name in `CACHES`.

    Raises:
        ValueError: the kind of cache is unknown, or nothing would be kept.
    """

    def __init__(
        self,
        root: Path,
        size: int | None,
        *,
        mode: CacheMode = "stack",
        num_time_steps: int = 1,
        num_boundaries: int = 1,
        budget_bytes: int | None = None,
        cache: str = "disk",
    ) -> None:
        if min(num_time_steps, num_boundaries, 1 if size is None else size) < 1:
            raise InputError(
                "stackwise.empty_time_step_caches",
                num_time_steps=num_time_steps,
                num_boundaries=num_boundaries,
                num_kept=size,
            )
        self.root = root
        self.size = num_time_steps if size is None else min(size, num_time_steps)
        self.mode = mode
        self.num_kept = num_kept(self.size, num_boundaries, mode)
        self.budget_bytes = budget_bytes
        self.statistics = CacheStatistics()
        self._make_cache = CACHES.get(cache)
        self._open: dict[tuple[int, int], Cache] = {}  # least recently used first
        self._keys: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def bytes_each(self) -> int | None:
        """The part of the budget that each cache gets, in bytes."""
        return None if self.budget_bytes is None else self.budget_bytes // self.num_kept

    def open(
        self,
        key: Mapping[str, Any],
        pages: Pages,
        compute: Compute,
        *,
        hidden_size: int,
        dtype: torch.dtype = torch.float32,
        on_page: OnPage | None = None,
    ) -> Cache:
        """Open the cache of `key`, fill it as far as its budget allows, and return it.

        Other caches are closed and removed as `size` and `mode` require. Caches left by other runs
        are removed only if the space is needed.

        Args:
            key: as for `ActivationCache`; it contains the integers `time_step` and `unit`, and
                `trunk_hash`.
            compute, on_page: as for `ActivationCache.build`.

        Raises:
            ValueError, StorageError: as for `ActivationCache` and its `build`; or the key is
                incomplete.
        """
        if missing := [name for name in _VARYING if name not in key]:
            raise InputError("stackwise.incomplete_time_step_key", missing=", ".join(missing))
        name = (int(key["time_step"]), int(key["unit"]))
        if name in self._open and self._keys[name] != dict(key):
            self._discard(name)
        self._evict(key)
        cache = self._open.pop(name, None) or self._make_cache(
            self.root,
            key,
            pages,
            hidden_size=hidden_size,
            dtype=dtype,
            budget_bytes=self.bytes_each,
            statistics=self.statistics,
        )
        self._open[name], self._keys[name] = cache, dict(key)
        self._free(cache.missing_bytes(), key)
        cache.build(compute, on_page)
        if self.mode == "stack":
            self._drop(lambda time_step, unit: time_step == name[0] and unit < name[1], key)
        return cache

    def discard(self) -> None:
        """Delete all caches of a run that has ended, except those that other processes use."""
        for key in list(self._keys.values())[-1:]:
            self._drop(lambda *_: True, key)

    def close(self) -> None:
        """Close all caches, but keep their content."""
        for cache in self._open.values():
            cache.close()
        self._open.clear()
        self._keys.clear()

    def refuse_without_space(self, needed_bytes: int) -> None:
        """Check, before a run starts, that its caches fit on the disk.

        Args:
            needed_bytes: as from `bytes_needed`; no more than the budget is written.

        Raises:
            ValueError: there is not enough free space, even if all removable caches are removed.
        """
        wanted = min(needed_bytes, self.budget_bytes or needed_bytes)
        held = sum(map(folder_bytes, self._folders()))
        in_use = held - sum(map(folder_bytes, self._unused()))
        refuse_without_space(self.root, wanted - (held - in_use))

    def _discard(self, name: tuple[int, int]) -> None:
        self._open.pop(name).discard()
        del self._keys[name]

    def _drop(self, is_over: Callable[[int, int], bool], key: Mapping[str, JsonValue]) -> None:
        """Remove the caches of this run for which `is_over(time_step, unit)`."""
        for name in list(self._open):
            if is_over(*name):
                self._discard(name)
        for folder, age in self._left_over(key).items():
            if is_over(*age):
                _remove(folder)

    def _left_over(self, key: Mapping[str, JsonValue]) -> dict[Path, tuple[int, int]]:
        """Return the cache folders that earlier processes of the run of `key` left.

        Returns:
            Folder → (time step, unit), the least recently used folder first.
        """
        key_of = {folder: _read_key(folder) for folder in self._unused()}
        return {
            folder: (int(old["time_step"]), int(old["unit"]))
            for folder, old in key_of.items()
            if old is not None and _is_same_training(old, key)
        }

    def _evict(self, key: Mapping[str, Any]) -> None:
        """Keep the `size` most recently used time steps, including that of `key`; remove others."""
        left = [time_step for time_step, _ in self._left_over(key).values()]
        opened = [time_step for time_step, _ in self._open]
        used = [*left, *opened, int(key["time_step"])]  # the least recently used first
        kept = list(dict.fromkeys(reversed(used)))[: self.size]
        self._drop(lambda time_step, _: time_step not in kept, key)

    def _free(self, needed_bytes: int, key: Mapping[str, JsonValue]) -> None:
        """Remove unused caches until `needed_bytes` more fit into the budget and on the disk.

        Caches of other runs are removed first, then those of this run.
        """
        own = self._left_over(key)
        leftovers = [*(folder for folder in self._unused() if folder not in own), *own]
        total_bytes = needed_bytes + sum(map(folder_bytes, self._folders()))
        for folder in leftovers:
            free_bytes = disk_free_bytes(self.root)
            fits = self.budget_bytes is None or total_bytes <= self.budget_bytes
            if fits and (free_bytes is None or needed_bytes <= free_bytes):
                return
            size = folder_bytes(folder)
            if _remove(folder):
                total_bytes -= size

    def _folders(self) -> list[Path]:
        """Return the folders of all caches, the least recently used first."""
        with suppress(FileNotFoundError):
            folders = [path for path in self.root.iterdir() if _OURS.fullmatch(path.name)]
            return sorted(folders, key=_last_use)
        return []

    def _unused(self) -> list[Path]:
        """Return the folders that no living process has open, the least recently used first.

        Also finish removals that a killed process had begun.
        """
        with suppress(FileNotFoundError):
            for path in self.root.iterdir():
                if _REMOVED.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True)
        return [folder for folder in self._folders() if is_unused(folder)]


def num_kept(num_time_steps: int, num_boundaries: int, mode: CacheMode) -> int:
    """Return the maximum number of caches that exist at once if some time steps are kept.

    In mode "stack" an older unit's cache stays until the newer one of the same time step is
    complete.
    """
    if mode == "rack":
        return num_time_steps * num_boundaries
    return num_time_steps + (1 if num_boundaries > 1 else 0)


def _is_same_training(old: Mapping[str, object], key: Mapping[str, JsonValue]) -> bool:
    """Return whether two cache keys belong to one run: they differ only in values that vary."""
    own: JsonObject = json.loads(json.dumps({**key}))
    return all(old.get(name) == value for name, value in own.items() if name not in _VARYING)


def _read_key(folder: Path) -> dict[str, Any] | None:
    with suppress(OSError, DamagedFileError):
        return read_record(folder / KEY_FILE)
    return None


def _remove(folder: Path) -> bool:
    with suppress(OSError):  # another user's, on a shared disk
        return remove_unused(folder)
    return False


def _last_use(folder: Path) -> int:
    for path in (folder / IN_USE, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime_ns
    return 0
