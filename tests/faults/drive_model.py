"""G9: a mounted Google Drive as it was seen to behave, and machines that die while they copy to it.

    python -m tests.faults.drive_model        10,000 deaths; prints one JSON line

The model: what is written to the mount reaches the cloud later, each file in its own time; some
uploads are lost; the mount goes away and comes back; listings are old; files seem to be missing
that are there; a quota that trash counts against. When the machine dies, only the cloud remains,
with what was on its way there in part or not at all. The copier is the real one.

Source: shared reports googlecolab/colabtools #287, #3441, #5325, #5970, #1269, and
`max_parallel_push_task_instances:10` in Colab's drive.py.
"""

import argparse
import errno
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.format.codec import SUFFIX, decompress
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.lineage import Lineage
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier import Copier
from infrastructure.backup.replication.remote_session import RemoteSession, UploadedFile
from infrastructure.backup.replication.upload import Upload, fetch_version
from infrastructure.core.errors import CheckpointError, StorageError
from tests.faults.memory_files import Files, MemoryFiles

KEEP = 2
GRACE_SECONDS = 3600.0
RUN = "run"
PARALLEL_UPLOADS = 10


@dataclass
class Clock:
    """Simulated time, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Pending:
    """A change of the mount that the cloud does not have yet; `data` None: a removal."""

    path: Path
    data: bytes | None
    due: float
    is_lost: bool


@dataclass
class Weather:
    """How bad a Drive is."""

    upload_seconds: float = 60.0
    lost_share: float = 0.01
    lie_share: float = 0.01
    stale_share: float = 0.3
    stale_seconds: float = 300.0
    seconds_between_spells: float = 2400.0
    spell_seconds: float = 120.0
    quota_bytes: int = 1 << 40


class DriveModel(Place):
    """A mount, and the cloud behind it. Time passes with every operation."""

    url = "drive:model"
    is_slow = True

    def __init__(
        self, clock: Clock, draw: random.Random, weather: Weather, cloud: Files | None = None
    ) -> None:
        self.clock, self.draw, self.weather = clock, draw, weather
        self.cloud: Files = dict(cloud or {})
        self.mount: Files = dict(self.cloud)
        self.trash_bytes = 0
        self.queue: list[Pending] = []
        self._past: list[tuple[float, frozenset[Path]]] = []
        self._next_spell = clock.now + draw.expovariate(1 / weather.seconds_between_spells)
        self._spell_ends = 0.0

    def read(self, path: Path) -> Iterator[bytes]:
        self._pass_time()
        self._lie(path)
        yield self.mount[path]

    def size(self, path: Path) -> int:
        self._pass_time()
        self._lie(path)
        return len(self.mount[path])

    def names(self, directory: Path) -> list[str]:
        self._pass_time()
        self._maybe_missing(directory)
        depth = len(directory.parts)
        files = self._listed()
        found = {p.parts[depth] for p in files if p.is_relative_to(directory)}
        if not found:
            raise FileNotFoundError(errno.ENOENT, "No such directory", str(directory))
        return sorted(found)

    def free_bytes(self, directory: Path) -> int:
        return self.weather.quota_bytes - self._used_bytes()

    def make_directory(self, directory: Path) -> None:
        self._pass_time()

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self._pass_time()
        data = b"".join(bytes(buffer) for buffer in buffers)
        if self._used_bytes() + len(data) > self.weather.quota_bytes:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))
        if path in self.mount:  # as DrivePlace does it: what replaces a file is a new one
            self._change(path, None)
        self._change(path, data)

    def sync_file(self, path: Path) -> None:
        self._pass_time()

    def sync_directory(self, directory: Path) -> None:
        self._pass_time()

    def rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "nothing is renamed at a place", str(source))

    def remove(self, path: Path) -> None:
        self._pass_time()
        self._lie(path)
        self.trash_bytes += len(self.mount[path])
        self._change(path, None)

    def confirm(self, path: Path, content: Content) -> bool:
        """Whether the cloud has this file, as DriveFS tells by its id."""
        self._pass_time()
        if self.draw.random() < self.weather.lie_share:
            raise StorageError(f"{path} is gone")
        self._lie(path)
        if path not in self.cloud or any(one.path == path for one in self.queue):
            return False
        if Content.of([self.cloud[path]]) != content:
            raise StorageError(f"{path} is another file")
        return True

    def advice(self, error: OSError) -> str:
        return "mount it again"

    def die(self) -> Files:
        """What is left when the machine is gone: what was on its way is there in part, or not."""
        left = dict(self.cloud)
        for one in self.queue[:PARALLEL_UPLOADS]:
            if one.data is not None and one.path not in left and self.draw.random() < 0.3:
                left[one.path] = one.data[: self.draw.randrange(len(one.data))]
        return left

    def catch_up(self) -> None:
        """Let the cloud have what is due; the changes of one file stay in order."""
        blocked: set[Path] = set()
        waiting = []
        for number, one in enumerate(self.queue):
            is_due = one.due <= self.clock.now and number < PARALLEL_UPLOADS + len(blocked)
            if one.path in blocked or one.is_lost or not is_due:
                blocked.add(one.path)
                waiting.append(one)
            elif one.data is None:
                self.cloud.pop(one.path, None)
            else:
                self.cloud[one.path] = one.data
        self.queue = waiting

    def _change(self, path: Path, data: bytes | None) -> None:
        self._past = [p for p in self._past if p[0] > self.clock.now - self.weather.stale_seconds]
        self._past.append((self.clock.now, frozenset(self.mount)))
        if data is None:
            del self.mount[path]
        else:
            self.mount[path] = data
        # what replaces a lost upload goes its own way
        self.queue = [one for one in self.queue if one.path != path or not one.is_lost]
        due = self.clock.now + self.draw.expovariate(1 / self.weather.upload_seconds)
        is_lost = data is not None and self.draw.random() < self.weather.lost_share
        self.queue.append(Pending(path, data, due, is_lost))

    def _pass_time(self) -> None:
        self.clock.now += 0.1 + 0.4 * self.draw.random()
        self.catch_up()
        if self.clock.now >= self._next_spell:
            self._spell_ends = self.clock.now + self.draw.expovariate(
                1 / self.weather.spell_seconds
            )
            gap = self.draw.expovariate(1 / self.weather.seconds_between_spells)
            self._next_spell = self._spell_ends + gap
        if self.clock.now < self._spell_ends:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    def _maybe_missing(self, path: Path) -> None:
        if self.draw.random() < self.weather.lie_share:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    def _lie(self, path: Path) -> None:
        self._maybe_missing(path)
        if path not in self.mount:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    def _listed(self) -> frozenset[Path]:
        recent = [p for p in self._past if p[0] > self.clock.now - self.weather.stale_seconds]
        if recent and self.draw.random() < self.weather.stale_share:
            return self.draw.choice(recent)[1]
        return frozenset(self.mount)

    def _used_bytes(self) -> int:
        return sum(map(len, self.mount.values())) + self.trash_bytes


class LocalFiles(MemoryFiles):
    """This machine's disk."""

    def open(self, path: Path) -> BinaryIO:
        return BytesIO(self._file(path))


class PruneAtOnce(Copier):
    """Mutant: what is begun counts as if it were safe, and what it replaces goes at once."""

    def _take_newest(self) -> None:
        super()._take_newest()
        if self._upload is not None:
            self.pruning.grace_seconds = 0.0
            self.pruning.confirmed[self._upload.name] = self._upload.manifest


class ManifestFirst(Copier):
    """Mutant: the manifest goes first, and what it says counts."""

    def _take_newest(self) -> None:
        super()._take_newest()
        if self._upload is not None:
            self._upload.__class__ = _ManifestFirstUpload


class _ManifestFirstUpload(Upload):
    def steps(self) -> Iterator[float]:
        self._before_manifest()
        yield from self._put_manifest()
        for pack in self.manifest.packs:
            if pack.hash not in self.link.sent:
                self.objects._send(pack, is_seen=True)
                self.link.sent[pack.hash].confirmed_at = self.link.clock()
                yield 0.0
        self.is_confirmed = True


class BelieveTheMount(Copier):
    """Mutant: what the mount shows counts as safe."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.link.__class__ = _BelievingLink


class _BelievingLink(RemoteSession):
    def confirms(self, sent: UploadedFile) -> bool:
        try:
            if self.place.size(sent.path) != sent.content.size_bytes:
                return False
        except FileNotFoundError:
            return False
        sent.confirmed_at = self.clock()
        self.num_done += 1
        self.num_confirmed += 1
        return True


MUTANTS: dict[str, type[Copier]] = {
    "prune at once": PruneAtOnce,
    "manifest first": ManifestFirst,
    "believe the mount": BelieveTheMount,
}


@dataclass
class Outcome:
    """What was counted over all deaths.

    Attributes:
        lost: deaths after which a version is gone that was confirmed once, and that fewer than
            `KEEP` newer confirmed ones replace.
        not_found: deaths after which the reader did not find the newest whole version.
        confirmed, pruned: versions, so that one sees that something was at stake.
        fenced: machines that stopped copying because of another one, which there never is.
    """

    deaths: int = 0
    lost: int = 0
    not_found: int = 0
    confirmed: int = 0
    pruned: int = 0
    lives: int = 0
    fenced: int = 0


@dataclass
class Machine:
    """One virtual machine's life: a training that saves, and the copier beside it."""

    clock: Clock
    draw: random.Random
    drive: DriveModel
    copier_class: type[Copier]
    originals: dict[str, Files]
    confirmed: set[str]
    files: LocalFiles = field(default_factory=LocalFiles)

    def __post_init__(self) -> None:
        # in memory, but for the names that the store knows at its place, which lie on a disk
        self.disk = TemporaryDirectory()
        self.store = Store(Path(self.disk.name) / "checkpoints", self.files)
        self.go_on()
        link = RemoteSession(
            self.drive, RUN, compresses=False, clock=self.clock, fresh_seconds=GRACE_SECONDS / 2
        )
        self.copier = self.copier_class(
            self.store,
            link,
            Retention(keep_last=KEEP, keep_best=1),
            grace_seconds=GRACE_SECONDS,
            now=self.clock,
            draw=self.draw.random,
        )
        self.save_every = self.draw.uniform(60, 900)
        self._next_save = self.clock.now + self.save_every
        self._state = self.draw.randbytes(64)

    def go_on(self) -> None:
        """Fetch what the machine before this one left."""
        remote = Store(Path(RUN), MemoryFiles(self.drive.cloud))
        name, _ = remote.newest()
        if name is not None:
            fetch_version(remote, name, self.store, lambda done, total: None)
        Lineage(self.store.root).restored(remote.versions())

    def tick(self) -> None:
        """Save when it is time to; then let the copier do one thing, or time pass."""
        if self.clock.now >= self._next_save:
            self._save()
            self._next_save = self.clock.now + self.save_every
        wait = self.copier.tick()
        name = self.copier.status().confirmed_name
        if name is not None:
            self.confirmed.add(name)
        idle = self.copier.status().state == "idle"
        self.clock.now += min(60.0, self._next_save - self.clock.now) if idle and wait else wait
        self.drive.catch_up()

    def _save(self) -> None:
        # a state that comes back names objects again that were removed meanwhile
        if self.draw.random() < 0.7:
            self._state = self.draw.randbytes(64)
        else:
            self._state = bytes(64)
        tensors = {
            "frozen/base": TensorBytes("U8", (256,), bytes(range(256))),
            "model/w": TensorBytes("U8", (64,), self._state),
            "optimizer/m": TensorBytes("U8", (128,), self.draw.randbytes(128)),
        }
        step = len(self.originals) + 1
        facts: dict[str, Any] = {
            "step": step,
            "healthy": self.draw.random() > 0.05,
            "score": self.draw.random() if self.draw.random() < 0.3 else None,
            "kind": "emergency" if self.draw.random() < 0.05 else "scheduled",
        }
        name = self.store.commit(tensors, {"step": step}, **facts)
        self.originals[name] = files_of(self.store, name)
        self.store.remove_all_but(versions_to_keep(self.store, Retention()))


def files_of(store: Store, name: str) -> Files:
    """The files of a version, by path under its store."""
    paths = [store.manifest_path(name)]
    paths += [store.objects.path_of(pack.hash) for pack in store.read(name).packs]
    return {p.relative_to(store.root): b"".join(store.operations.read(p)) for p in paths}


def is_whole(cloud: Files, version: Files) -> bool:
    """Whether every file of a version is there with its very bytes; knows nothing of stores."""
    return all(_is_in(cloud, Path(RUN) / path, data) for path, data in version.items())


def _is_in(cloud: Files, path: Path, data: bytes) -> bool:
    """Whether a file is there, or its compressed form is."""
    if cloud.get(path) == data:
        return True
    try:
        return decompress(cloud[path.with_name(path.name + SUFFIX)], len(data)) == data
    except (KeyError, CheckpointError):
        return False


def judge(cloud: Files, machine: Machine, outcome: Outcome) -> None:
    """Count what a death at this moment would cost."""
    outcome.deaths += 1
    remote = Store(Path(RUN), MemoryFiles(cloud))
    whole = {name for name, version in machine.originals.items() if is_whole(cloud, version)}
    newest_first = sorted(machine.confirmed, reverse=True)
    outcome.lost += any(
        name not in whole for number, name in enumerate(newest_first) if number < KEEP
    )
    healthy = [name for name in sorted(whole, reverse=True) if remote.read(name).healthy]
    outcome.not_found += remote.newest()[0] != (healthy[0] if healthy else None)


def history(seed: int, copier_class: type[Copier], deaths: int, outcome: Outcome) -> None:
    """Machines that follow each other on one run, with `deaths` moments that are judged."""
    draw = random.Random(seed)
    clock = Clock()
    weather = Weather(
        upload_seconds=draw.choice([5.0, 60.0, 400.0]),
        lie_share=draw.choice([0.01, 0.1]),
        quota_bytes=draw.choice([1 << 40, 1 << 40, 12_000]),
    )
    cloud: Files = {}
    originals: dict[str, Files] = {}
    confirmed: set[str] = set()
    num_lives = draw.choice([1, 2, 3])
    for life in range(num_lives):
        drive = DriveModel(clock, draw, weather, cloud)
        machine = Machine(clock, draw, drive, copier_class, originals, confirmed)
        outcome.lives += 1
        moments = deaths // num_lives + (deaths % num_lives if life == 0 else 0)
        for _ in range(moments):
            for _ in range(draw.randrange(1, 60)):
                machine.tick()
            judge(drive.die(), machine, outcome)
        cloud = drive.die()
        outcome.fenced += machine.copier.status().state == "fenced"
        machine.copier.close()
        machine.disk.cleanup()
    outcome.confirmed += len(confirmed)
    outcome.pruned += sum(not is_whole(cloud, originals[name]) for name in confirmed)


def deaths_of(copier_class: type[Copier], num_deaths: int, first_seed: int = 0) -> Outcome:
    """The outcome of `num_deaths` deaths, 25 in each history."""
    outcome = Outcome()
    seed = first_seed
    while outcome.deaths < num_deaths:
        history(seed, copier_class, min(25, num_deaths - outcome.deaths), outcome)
        seed += 1
    return outcome


def rotation(num_deaths: int, first_seed: int = 0) -> dict[str, int]:
    """Beside it: a folder for each checkpoint on the mount, and the oldest of three is deleted, as
    transformers does with save_total_limit=2. Counts deaths after which the newest folder is not
    whole, and after which none is, although a checkpoint was whole in the cloud before."""
    counts = Counter(deaths=0, newest_not_whole=0, none_whole=0)
    seed = first_seed
    while counts["deaths"] < num_deaths:
        _rotate(random.Random(seed), counts)
        seed += 1
    return dict(counts)


def _rotate(draw: random.Random, counts: Counter[str]) -> None:
    clock = Clock()
    drive = DriveModel(clock, draw, Weather(upload_seconds=draw.choice([5.0, 60.0, 400.0])))
    folders: dict[int, Files] = {}
    save_every = draw.uniform(60, 900)
    was_possible = False
    for step in range(1, 40):
        folders[step] = _save_folder(drive, step)
        for old in sorted(folders)[:-2]:
            for path in folders.pop(old):
                try:
                    drive.remove(path)
                except OSError:
                    continue
        clock.now += save_every * draw.random()
        drive.catch_up()
        cloud = drive.die()
        steps = {int(path.parts[0].split("-")[1]) for path in cloud}
        whole = {s for s in steps if s in folders and folders[s].items() <= cloud.items()}
        counts["deaths"] += 1
        if was_possible:
            counts["newest_not_whole"] += max(steps, default=0) not in whole
            counts["none_whole"] += not whole
        was_possible = was_possible or bool(whole)
        clock.now += save_every * 0.5
        drive.catch_up()


def _save_folder(drive: DriveModel, step: int) -> Files:
    written = {}
    for name, size in (("model.safetensors", 320), ("optimizer.pt", 128), ("state.json", 16)):
        path = Path(f"checkpoint-{step}") / name
        written[path] = step.to_bytes(4, "little") * (size // 4)
        for _ in range(1000):  # a training would stop; here it tries until the mount is back
            try:
                drive.write(path, [written[path]])
                break
            except OSError:
                drive.clock.sleep(5.0)
    return written


def figures(num_deaths: int) -> dict[str, Any]:
    """G9, its mutants, and the rotation beside it."""
    begin = time.perf_counter()
    outcome = deaths_of(Copier, num_deaths)
    caught = []
    for name, copier_class in MUTANTS.items():
        found = deaths_of(copier_class, num_deaths // 10)
        caught.append(found.lost + found.not_found > 0)
        print(f"{name}: {found}", file=sys.stderr)
    return {
        **vars(outcome),
        "mutants": len(MUTANTS),
        "mutants_caught": sum(caught),
        "keep_2_rotation": rotation(num_deaths),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaths", type=int, default=10_000)
    found = figures(parser.parse_args().deaths)
    print(json.dumps({"G9": found}))
    is_right = found["lost"] == found["not_found"] == found["fenced"] == 0
    return 0 if is_right and found["mutants"] == found["mutants_caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
