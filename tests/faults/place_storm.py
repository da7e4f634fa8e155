"""G17: backup destinations that lose, change, hide and refuse things while a run copies to them.

    python -m tests.faults.place_storm        over 300 disturbances; prints one JSON line

What is judged: a status never says more than was seen (each file of the version that it names was
there at some moment since `present_at`, with its bytes at some moment since `compared_at`), and
when the run has ended, the destination alone gives back what the status has promised. The copier,
and the HTTP of the Hub's client, are the real ones; time is simulated.
"""

import argparse
import errno
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infrastructure.backup.backends.base import Content, Evidence, Place
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.backup.format.codec import SUFFIX, decompress
from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier import Copier
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.second_looks import SecondLooks
from infrastructure.backup.replication.status import FENCED, BackupStatus
from infrastructure.core.errors import CheckpointError, StorageError
from tests.backup.backends.hub_server import TOKEN, Hub, running_hub
from tests.faults.drive_model import Clock, files_of, is_whole
from tests.faults.judge import print_figures
from tests.faults.memory_files import Files, MemoryFiles

RUN = "run"
KEEP = 2
LONGEST_LAG_SECONDS = 60.0
END_SECONDS = 4 * 3600.0  # within which all must be confirmed when nothing disturbs any more
FROZEN = random.Random(0).randbytes(300)


class Service(Place):
    """A store in memory that answers as one kind of service does."""

    url = "memory:service"

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.is_slow = evidence, evidence is not Evidence.READ_BACK
        self.files = MemoryFiles()

    def read(self, path: Path) -> Iterator[bytes]:
        return self.files.read(path)

    def size(self, path: Path) -> int:
        return self.files.size(path)

    def names(self, directory: Path) -> list[str]:
        if not (names := self.files.names(directory)):
            raise FileNotFoundError(errno.ENOENT, "No such directory", str(directory))
        return names

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.files.write(path, buffers)

    def create(self, path: Path, data: bytes) -> bool:
        return self.files.files.setdefault(path, data) is data

    def remove(self, path: Path) -> None:
        self.files.remove(path)

    def confirm(self, path: Path, content: Content) -> bool | Evidence:
        try:
            data = self.files.files[path]
        except KeyError:
            if self.evidence is Evidence.MOUNT:
                return False  # no proof that it is gone
            raise StorageError(f"{path} is gone") from None
        if Content.of([data], self.hashes) != content:
            raise StorageError(f"{path} holds other bytes")
        return self.evidence

    def lose(self, path: Path, data: bytes | None) -> None:
        if data is None:
            self.files.files.pop(path, None)
        else:
            self.files.files[path] = data

    def truth(self) -> Files:
        return dict(self.files.files)


class Folder(FolderPlace):
    """A folder, whose files somebody else changes, too."""

    def lose(self, path: Path, data: bytes | None) -> None:
        if data is None:
            self.at(path).unlink(missing_ok=True)
        elif self.at(path).parent.is_dir():
            self.at(path).write_bytes(data)

    def truth(self) -> Files:
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root): path.read_bytes() for path in paths}


class OnHub(HubPlace):
    """A repository on a server of this machine."""

    hub: Hub

    @property
    def kept(self) -> dict[str, bytes]:
        return self.hub.repos.setdefault(f"models/{self.repo_id}", {})

    def lose(self, path: Path, data: bytes | None) -> None:
        if data is None:
            self.kept.pop(self.at(path), None)
        else:
            self.kept[self.at(path)] = data

    def truth(self) -> Files:
        return {Path(name): data for name, data in self.kept.items()}


Destination = Service | Folder | OnHub


@dataclass
class Weather:
    """What is wrong with a destination at the moment."""

    lag_seconds: float = 0.0
    is_read_only: bool = False
    refusing_share: float = 0.0
    lying_share: float = 0.0


class Disturbed(Place):
    """The way to a destination, for one writer."""

    def __init__(
        self, inner: Destination, weather: Weather, clock: Clock, draw: random.Random
    ) -> None:
        self.inner, self.weather, self.clock, self.draw = inner, weather, clock, draw
        self.url, self.is_slow, self.hashes = inner.url, inner.is_slow, inner.hashes
        self._listed: dict[Path, list[tuple[float, list[str]]]] = {}

    def read(self, path: Path) -> Iterator[bytes]:
        self._answer(path)
        data = b"".join(self.inner.read(path))
        yield b"<html>Error</html>" if self._lies() else data

    def size(self, path: Path) -> int:
        self._answer(path)
        return 18 if self._lies() else self.inner.size(path)

    def names(self, directory: Path) -> list[str]:
        """As it was up to a minute ago."""
        self._answer(directory)
        try:
            now = self.inner.names(directory)
        except FileNotFoundError:
            now = []
        known = self._listed.setdefault(directory, [(float("-inf"), [])])
        known.append((self.clock.now, now))
        seen_at = self.clock.now - self.weather.lag_seconds * self.draw.random()
        names = [names for at, names in known if at <= seen_at][-1]
        if not names:
            raise FileNotFoundError(errno.ENOENT, "No such directory", str(directory))
        return names

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self._change(path)
        self.inner.write(path, buffers)

    def create(self, path: Path, data: bytes) -> bool | None:
        self._change(path)
        return self.inner.create(path, data)

    def remove(self, path: Path) -> None:
        self._change(path)
        self.inner.remove(path)

    def make_directory(self, directory: Path) -> None:
        self._change(directory)
        self.inner.make_directory(directory)

    def confirm(self, path: Path, content: Content) -> bool | Evidence:
        self._answer(path)
        if self._lies():
            raise StorageError(f"{path} holds an error page")
        return self.inner.confirm(path, content)

    def close(self) -> None:
        self._answer(Path())
        self.inner.close()

    def _change(self, path: Path) -> None:
        self._answer(path)
        if self.weather.is_read_only:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    def _answer(self, path: Path) -> None:
        if self.draw.random() < self.weather.refusing_share:
            raise OSError(errno.EIO, "503 Service Unavailable", str(path))

    def _lies(self) -> bool:
        return self.draw.random() < self.weather.lying_share


@dataclass
class Outcome:
    """What was counted.

    Attributes:
        statuses: that were judged.
        believed: of these, such that said more than was seen.
        withdrawn: times that a claim was taken back, so that one sees that something was at stake.
        lost: runs whose destination did not give back what the last status had promised.
        unsaved: runs whose newest version was not confirmed in the end, although nothing disturbed
            any more.
        both_wrote: runs of two writers of which none was fenced, or one no more after a restart.
    """

    histories: int = 0
    disturbances: int = 0
    statuses: int = 0
    withdrawn: int = 0
    restarts: int = 0
    fenced: int = 0
    believed: int = 0
    lost: int = 0
    unsaved: int = 0
    both_wrote: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


class Truth:
    """What each file at a destination held, and until when."""

    def __init__(self, clock: Clock, destination: Destination) -> None:
        self.clock, self.destination = clock, destination
        self._held: dict[Path, list[tuple[bytes, float]]] = {}  # and the last moment of it

    def note(self) -> None:
        for path, data in self.destination.truth().items():
            known = self._held.setdefault(path, [])
            if known and known[-1][0] == data:
                known.pop()
            known.append((data, self.clock.now))

    def held_since(self, path: Path, data: bytes, since: float, *, size_only: bool) -> bool:
        """Whether a file has held `data` (or as many bytes) at some moment since then, as it is or
        compressed."""
        plain = self._held.get(path, [])
        packed = self._held.get(path.with_name(path.name + SUFFIX), [])
        sizes = {len(held) for held, _ in packed if _opens_to(held, data)} if size_only else set()
        return any(
            until >= since and (held == data or (size_only and len(held) == len(data)))
            for held, until in plain
        ) or any(
            until >= since and (len(held) in sizes or _opens_to(held, data))
            for held, until in packed
        )


def _opens_to(packed: bytes, data: bytes) -> bool:
    try:
        return decompress(packed, len(data)) == data
    except CheckpointError:
        return False


class Writer:
    """A training on one machine, and its copier."""

    def __init__(
        self,
        folder: Path,
        place: Disturbed,
        clock: Clock,
        draw: random.Random,
        copier_class: type[Copier],
    ) -> None:
        self.store = Store(folder)
        self.place, self.clock, self.draw, self.copier_class = place, clock, draw, copier_class
        self.originals: dict[str, Files] = {}
        self.copier = self._new_copier()
        self.shown = BackupStatus()

    def _new_copier(self) -> Copier:
        link = RemoteSession(self.place, RUN, clock=self.clock)
        retention = Retention(keep_last=KEEP)
        return self.copier_class(self.store, link, retention, now=self.clock, draw=self.draw.random)

    def restart(self) -> None:
        self.copier.close()
        self.copier = self._new_copier()

    def save(self, step: int) -> None:
        tensors = {
            "frozen/base": TensorBytes("U8", (300,), FROZEN),
            "model/w": TensorBytes("U8", (90,), self.draw.randbytes(90)),
            "optimizer/m": TensorBytes("U8", (70,), bytes([step % 3]) * 70),
        }
        name = self.store.commit(tensors, {"step": step}, step=step)
        self.originals[name] = files_of(self.store, name)
        self.store.remove_all_but(self.store.versions()[:KEEP])


class History:
    """One run, or two of one name, and what happens to their destination."""

    def __init__(
        self,
        destination: Destination,
        seed: int,
        folder: Path,
        outcome: Outcome,
        copier_class: type[Copier] = Copier,
    ) -> None:
        self.draw, self.clock = random.Random(seed), Clock(1e6)
        self.destination, self.outcome, self.folder = destination, outcome, folder
        self.copier_class = copier_class
        self.weather, self.truth = Weather(), Truth(self.clock, destination)
        self.step = 0
        self.writers = [self._writer("one")]
        outcome.histories += 1

    def _writer(self, name: str) -> Writer:
        place = Disturbed(self.destination, self.weather, self.clock, self.draw)
        return Writer(self.folder / name, place, self.clock, self.draw, self.copier_class)

    def run(self, num_disturbances: int) -> None:
        disturb = [
            *(self._gone, self._gone, self._older, self._damaged, self._emptied),
            *(self._lagging, self._read_only, self._refusing, self._lying, self._restarted),
        ]
        has_other = self.draw.random() < 0.25
        for number in range(num_disturbances):
            if has_other and number == num_disturbances // 2:
                self._another_writer()
            else:
                what = self.draw.choice(disturb)
                what()
                self._count(what.__name__.strip("_"))
            self._pass(self.draw.choice([5.0, 100.0, 900.0, 2500.0]))
        self._end()

    def _count(self, kind: str) -> None:
        self.outcome.disturbances += 1
        self.outcome.kinds[kind] = self.outcome.kinds.get(kind, 0) + 1

    def _pass(self, seconds: float) -> None:
        """Let time go by: versions are saved and copied, all statuses are judged."""
        until = self.clock.now + seconds
        save_at = self.clock.now + self.draw.uniform(0, 600)
        while self.clock.now < until:
            if self.clock.now >= save_at:
                self.step += 1
                self.draw.choice(self.writers).save(self.step)
                save_at = self.clock.now + self.draw.uniform(60, 900)
            self._tick()

    def _tick(self) -> None:
        self.truth.note()
        waits = []
        for writer in self.writers:
            waits.append(writer.copier.tick())
            self.truth.note()
            self._judge(writer)
        is_idle = all(writer.copier.status().state == "idle" for writer in self.writers)
        self.clock.now += 15.0 if is_idle else max(min(waits), 0.05)

    def _judge(self, writer: Writer) -> None:
        status = writer.copier.status()
        before, writer.shown = writer.shown, status
        self.outcome.withdrawn += (before.confirmed_name or "") > (status.confirmed_name or "")
        if status.confirmed_name is None:
            return
        self.outcome.statuses += 1
        present, compared = status.present_at, status.compared_at
        assert present is not None
        assert compared is not None
        version = writer.originals.get(status.confirmed_name)
        self.outcome.believed += version is None or not all(
            self.truth.held_since(Path(RUN) / path, data, present, size_only=True)
            and self.truth.held_since(Path(RUN) / path, data, compared, size_only=False)
            for path, data in version.items()
        )

    def _paths(self) -> list[Path]:
        return sorted(p for p in self.destination.truth() if p.is_relative_to(Path(RUN)))

    def _gone(self) -> None:
        for path in self._paths():
            if self.draw.random() < 0.4:
                self.destination.lose(path, None)

    def _emptied(self) -> None:
        for path in self._paths():
            self.destination.lose(path, None)

    def _older(self) -> None:
        """Files hold what another one held: a restore of an old snapshot, a sync that crossed."""
        paths = self._paths()
        for path in paths:
            if self.draw.random() < 0.3:
                self.destination.lose(path, self.destination.truth()[self.draw.choice(paths)])

    def _damaged(self) -> None:
        for path in self._paths():
            if self.draw.random() < 0.3:
                data = bytearray(self.destination.truth()[path])
                data[self.draw.randrange(len(data)) : self.draw.choice([None, -1])] = b"?"
                self.destination.lose(path, bytes(data))

    def _lagging(self) -> None:
        self.weather.lag_seconds = self.draw.uniform(0, LONGEST_LAG_SECONDS)

    def _read_only(self) -> None:
        self._for_a_while(is_read_only=True)

    def _refusing(self) -> None:
        if isinstance(self.destination, OnHub):
            part = self.draw.choice(["paths-info", "/commit/", "/tree/", "/resolve/"])
            self.destination.hub.failing = {part: self.draw.choice([500, 502, 503])}
            self._pass(self.draw.choice([30.0, 400.0]))
            self.destination.hub.failing = {}
            return
        self._for_a_while(refusing_share=self.draw.choice([0.2, 1.0]))

    def _lying(self) -> None:
        self._for_a_while(lying_share=self.draw.choice([0.05, 0.5]))

    def _for_a_while(self, **weather: Any) -> None:
        before = {name: getattr(self.weather, name) for name in weather}
        for name, value in weather.items():
            setattr(self.weather, name, value)
        self._pass(self.draw.choice([30.0, 400.0, 2000.0]))
        for name, value in before.items():
            setattr(self.weather, name, value)

    def _restarted(self) -> None:
        self.outcome.restarts += 1
        writer = self.draw.choice(self.writers)
        # where all is lost, nothing tells that there was another: the first one to come goes on
        is_fenced = writer.copier.status().state == FENCED and bool(self._paths())
        writer.restart()
        self._pass(200.0)
        if is_fenced and self.weather == Weather():
            self.outcome.both_wrote += writer.copier.status().state != FENCED

    def _another_writer(self) -> None:
        """The folder of the run was copied, and both copies are trained on."""
        if len(self.writers) > 1:
            return
        self._count("another writer")
        if self.writers[0].store.root.is_dir():
            shutil.copytree(self.writers[0].store.root, self.folder / "two")
        other = self._writer("two")
        other.originals = dict(self.writers[0].originals)
        self.writers.append(other)
        for writer in self.writers:
            self.step += 1
            writer.save(self.step)

    def _end(self) -> None:
        """The trainings end; what was confirmed last is disturbed once more, and then no more."""
        self.weather.lag_seconds = 0.0
        for writer in self.writers:
            self.step += 1
            writer.save(self.step)
        self._until_done()
        what = self.draw.choice([self._gone, self._older, self._damaged, self._emptied])
        what()
        self._count(what.__name__.strip("_"))
        for writer in self.writers:
            writer.copier.look_again("end")
        self._until_done()
        fenced = [writer.copier.status().state == FENCED for writer in self.writers]
        self.outcome.fenced += sum(fenced)
        self.outcome.both_wrote += len(fenced) > 1 and not any(fenced)
        for writer, is_fenced in zip(self.writers, fenced, strict=True):
            if not is_fenced:
                self._judge_end(writer)
            writer.copier.close()

    def _until_done(self) -> None:
        until = self.clock.now + END_SECONDS
        while self.clock.now < until:
            self._tick()
            if all(w.copier.is_done and w.copier.has_looked for w in self.writers):
                return

    def _judge_end(self, writer: Writer) -> None:
        """Of a writer that nobody stopped: its promise is kept by the destination alone."""
        status, cloud = writer.copier.status(), self.destination.truth()
        self.outcome.unsaved += not status.is_safe or status.last_look != "end"
        name = status.confirmed_name
        found = Store(Path(RUN), MemoryFiles(cloud)).newest()[0]
        kept = name is not None and found == name and is_whole(cloud, writer.originals[name])
        self.outcome.lost += name is not None and not kept


class Believing(Copier):
    """Mutant: what was confirmed once is there for good."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looks = _NoLooks(self.link)


class _NoLooks(SecondLooks):
    def one(self, files: Sequence[Any]) -> None:
        return

    def last(self, files: Sequence[Any]) -> Iterator[float]:
        yield 0.0


class Boasting(Copier):
    """Mutant: what was seen once is said to be seen now."""

    def status(self) -> BackupStatus:
        status = super().status()
        if status.confirmed_name is None:
            return status
        now = self._now()
        return BackupStatus(**{**asdict(status), "present_at": now, "compared_at": now})


class Forgetful(Copier):
    """Mutant: what was found missing is forgotten, and the claim stays."""

    def _holding(self) -> dict[str, Any]:
        known = super()._holding()
        self.kept: dict[str, Any] = {**getattr(self, "kept", {}), **known}
        return {name: seen for name, seen in self.kept.items() if name in self.pruning.confirmed}


MUTANTS: dict[str, type[Copier]] = {
    "believing": Believing,
    "boasting": Boasting,
    "forgetful": Forgetful,
}
KINDS = [Evidence.CHECKSUM, Evidence.READ_BACK, Evidence.MOUNT, Evidence.BACKEND]


def storm(
    num_disturbances: int, copier_class: type[Copier] = Copier, first_seed: int = 0
) -> Outcome:
    """The outcome of so many disturbances, ten in each run, over all kinds of services in turn."""
    outcome, seed = Outcome(), first_seed
    while outcome.disturbances < num_disturbances:
        with tempfile.TemporaryDirectory() as name:
            kind = KINDS[seed % len(KINDS)]
            History(Service(kind), seed, Path(name), outcome, copier_class).run(10)
        seed += 1
    return outcome


def storm_on_disk(num_disturbances: int, first_seed: int = 0) -> Outcome:
    """The same with a folder of this machine."""
    outcome, seed = Outcome(), first_seed
    while outcome.disturbances < num_disturbances:
        with tempfile.TemporaryDirectory() as name:
            (place := Path(name) / "place").mkdir()
            History(Folder(place), seed, Path(name), outcome).run(6)
        seed += 1
    return outcome


def storm_over_http(num_disturbances: int, first_seed: int = 0) -> Outcome:
    """The same with a repository on the Hub, over real HTTP to a server of this machine."""
    outcome, seed = Outcome(), first_seed
    with running_hub() as hub:
        while outcome.disturbances < num_disturbances:
            with tempfile.TemporaryDirectory() as name:
                place = OnHub(f"hf://me/backups-{seed}", hub.url)
                place.hub = hub
                History(place, seed, Path(name), outcome).run(6)
            seed += 1
    return outcome


def figures(num_disturbances: int) -> dict[str, Any]:
    """All of it, with the defects that it must find."""
    found = asdict(storm(num_disturbances))
    for name, more in (
        ("folder", storm_on_disk(num_disturbances // 4)),
        ("http", storm_over_http(num_disturbances // 8)),
    ):
        found[f"disturbances_{name}"] = more.disturbances
        for key in ("disturbances", "statuses", "withdrawn", "restarts", "fenced"):
            found[key] += getattr(more, key)
        for key in ("believed", "lost", "unsaved", "both_wrote"):
            found[key] += getattr(more, key)
    found["mutants"] = len(MUTANTS)
    found["mutants_caught"] = sum(is_caught(kind) for kind in MUTANTS.values())
    return found


def is_caught(mutant: type[Copier], num_disturbances: int = 60) -> bool:
    """Whether the figures of a copier with a defect show it."""
    outcome = storm(num_disturbances, mutant)
    return outcome.believed + outcome.lost + outcome.unsaved > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--disturbances", type=int, default=240)
    options = parser.parse_args()
    os.environ["HF_TOKEN"] = TOKEN
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    print_figures("G17", figures(options.disturbances))
    return 0


if __name__ == "__main__":
    sys.exit(main())
