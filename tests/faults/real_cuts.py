"""The power cut of a real file system: ext4 on a loop device is shut down in the middle of a run.

    python -m tests.faults.real_cuts [--cuts 20] [--seed 0]

The ioctl that file-system tests use (`xfs_io -c shutdown`) stops all writing at once, without the
journal's last entries; what was not synced is gone. Then the file system is mounted anew, which
replays its journal, and the same command is given. Prints one JSON line; `failed`, `differing` and
`silent` as in `run_power_cuts`. Needs root, a loop device and mkfs.ext4: where there is none of
these, it says so and proves nothing.

Source of the ioctl: EXT4_IOC_SHUTDOWN, fs/ext4/ext4.h of Linux.
"""

import argparse
import contextlib
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.faults.judge import Figures, print_figures
from tests.faults.kill_storm import in_child
from tests.faults.whole_runs import (
    configuration,
    import_all,
    result_of,
    train,
    wait_for_helpers,
)

SHUTDOWN, WITHOUT_FLUSHING = 0x8004587D, 2
IMAGE_BYTES = 2 * 1024**3  # sparse
LONGEST_RUN_SECONDS = 300.0


class RealDisk:
    """An ext4 file system in a file, mounted at `folder`."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder
        folder.mkdir(parents=True, exist_ok=True)

    def make(self) -> None:
        """A new file system.

        Raises:
            OSError, CalledProcessError: that cannot be done here.
        """
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        """Mount it; its journal is replayed."""
        _run("mount", "-o", "loop", str(self.image), str(self.folder))

    def unmount(self) -> None:
        for _ in range(100):  # a dying process may have files open still
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("umount", str(self.folder))
                return
            time.sleep(0.05)
        _run("umount", "--lazy", str(self.folder))

    def cut(self) -> None:
        """The power goes."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        finally:
            os.close(descriptor)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def why_not() -> str | None:
    """Why no file system can be cut here; None: it can."""
    if os.geteuid() != 0:
        return "only root mounts"
    missing = [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        disk = RealDisk(Path(folder) / "image", Path(folder) / "disk")
        try:
            disk.make()
            stack.callback(disk.unmount)
            disk.cut()
        except (OSError, subprocess.CalledProcessError) as error:
            return f"no ext4 on a loop device: {error}"
    return None


def cuts(root: Path, count: int, seed: int) -> Iterator[tuple[float, list[str]]]:
    """Where each cut was, as a share of a whole run, and what was wrong after it."""
    disk = RealDisk(root / "image", root / "disk")
    work = disk.folder / "work"
    seconds, expected = _whole_run(disk, work)
    draw = random.Random(seed)
    for _ in range(count):
        share = draw.uniform(0.1, 1.1)
        _begin(disk, work)
        try:
            child = in_child(lambda: os._exit(train(work, with_helpers=True).code & 255))
            time.sleep(share * seconds)
            disk.cut()
            _end(child)
            disk.unmount()
            disk.mount()
            yield share, _faults(work, expected)
        finally:
            wait_for_helpers()
            disk.unmount()


def _begin(disk: RealDisk, work: Path) -> None:
    disk.make()
    work.mkdir()
    configuration(work)  # writes the rows
    os.sync()


def _whole_run(disk: RealDisk, work: Path) -> tuple[float, tuple[str, list[tuple[int, float]]]]:
    """How long an undisturbed run takes, and what comes out."""
    _begin(disk, work)
    try:
        began = time.monotonic()
        done = train(work, with_helpers=True)
        assert done.code == 0, done.output
        seconds = time.monotonic() - began
        [final] = (work / "runs").glob("*/final")
        return seconds, result_of(final.parent)
    finally:
        wait_for_helpers()
        disk.unmount()


def _end(child: int) -> None:
    """Kill the training and what it has started: its machine is without power."""
    children = _descendants(child)
    for process in [child, *children]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_for_helpers()


def _descendants(process: int) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [found.pid for found in psutil.Process(process).children(recursive=True)]
    return []


def _faults(work: Path, expected: tuple[str, list[tuple[int, float]]]) -> list[str]:
    done = train(work, with_helpers=True)
    if done.code != 0:
        return [f"failed: {done.output[-400:]}"]
    found = result_of(max(path.parent for path in (work / "runs").glob("*/final")))
    if found[0] != expected[0]:
        return ["differing: another model"]
    if found[1] != expected[1] and "metrics.jsonl" not in done.output:
        return ["silent: other losses, or fewer"]
    return []


def figures_of(count: int, seed: int) -> Figures:
    """All cuts, counted."""
    if (reason := why_not()) is not None:
        return {"cuts": 0, "not_here": reason}
    counts = dict.fromkeys(("cuts", "failed", "differing", "silent"), 0)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for share, faults in cuts(Path(folder), count, seed):
            counts["cuts"] += 1
            for fault in faults:
                counts[fault.partition(":")[0]] += 1
                wrong.append(f"at {share:.2f}: {fault}")
    return {**counts, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import_all()
    print_figures("G2 real", figures_of(options.cuts, options.seed))


if __name__ == "__main__":
    main()
