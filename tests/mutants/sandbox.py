"""A box of Linux namespaces for code that has a defect in it: no network, one writable folder, and
nothing that it starts outlives it.

One parent imports the heavy packages once. Each piece of work is a fork of it with mounts of its
own, so a file can be another one for it and for whatever it starts, under the same name.
"""

import ctypes
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MEMORY_BYTES, FILE_BYTES = 20 * 1024**3, 2 * 1024**3
WAIT_SECONDS = 1.0
INSIDE = "MUTANTS_INSIDE_SANDBOX"

libc = ctypes.CDLL(None, use_errno=True)


def enter(module: str, scratch: Path) -> None:
    """Go on inside: this process is replaced by one that can change nothing but `scratch`.

    Raises:
        SystemExit: this machine allows no namespaces.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    if os.environ.get(INSIDE) == str(os.getppid()):
        _close_in(scratch)
        return
    unshare = ["unshare", "--map-root-user", "--mount", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode != 0:
        sys.exit("mutants need Linux with user namespaces (unshare of util-linux)")
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    done = subprocess.run([*unshare, *command], env={**os.environ, INSIDE: str(os.getpid())})
    sys.exit(done.returncode)


def _close_in(scratch: Path) -> None:
    os.environ["TMPDIR"] = str(scratch)
    mount("none", "/", MS_REC | MS_PRIVATE)
    mount(str(scratch), str(scratch), MS_BIND)
    mount("none", "/", MS_REMOUNT | MS_BIND | MS_RDONLY)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # loopback is down at first
        up = struct.pack("16sh14s", b"lo", 1, b"")  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS


def mount(source: str, target: str, flags: int, kind: str = "none") -> None:
    names = [os.fsencode(text) for text in (source, target, kind)]
    if libc.mount(*names, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {target}: {os.strerror(number)}")


class Forked:
    """A piece of work in a fork: it reports JSON lines, and is killed with all that it started.

    Args:
        work: called in the fork with a function that reports a line.
        instead: for the fork, a value lies under the name of its key.
        folder: its folder for temporary files.
    """

    def __init__(
        self,
        work: Callable[[Callable[[dict[str, Any]], None]], None],
        folder: Path,
        instead: Mapping[Path, Path] | None = None,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _as_first_process(work, writing, folder, instead or {})
        os.close(writing)
        self._pipe = reading
        self._rest = b""

    def reports(self, seconds: Callable[[], float]) -> Iterator[dict[str, Any]]:
        """What it reports, until it ends.

        Args:
            seconds: how long the next report may take. Counted in single waits: while this process
                and its fork are stopped together, no time passes.

        Raises:
            TimeoutError: it took longer.
        """
        while True:
            left = seconds()
            while b"\n" not in self._rest:
                if left <= 0:
                    raise TimeoutError
                ready, _, _ = select.select([self._pipe], [], [], min(left, WAIT_SECONDS))
                if not ready:
                    left -= WAIT_SECONDS
                    continue
                piece = os.read(self._pipe, 1 << 16)
                if not piece:
                    return
                self._rest += piece
            line, _, self._rest = self._rest.partition(b"\n")
            yield json.loads(line)

    def close(self) -> None:
        """Kill what is left of it, and remove its folder."""
        os.kill(self._pid, signal.SIGKILL)  # with the first process, all of its namespace end
        os.waitpid(self._pid, 0)
        os.close(self._pipe)
        shutil.rmtree(self.folder, ignore_errors=True)


def _as_first_process(
    work: Callable[[Callable[[dict[str, Any]], None]], None],
    pipe: int,
    folder: Path,
    instead: Mapping[Path, Path],
) -> None:
    """Never returns. This process waits; the work is done in a namespace of processes of its own.

    That namespace's first process does nothing but collect orphans, as init does.
    """
    try:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with its parent
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if libc.unshare(CLONE_NEWNS | CLONE_NEWPID) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for path, other in instead.items():
            mount(str(other), str(path), MS_BIND)
        init = os.fork()
        if init:
            os.close(pipe)
            os.waitpid(init, 0)
            os._exit(0)
        libc.prctl(1, signal.SIGKILL)
        mount("proc", "/proc", 0, "proc")
        worker = os.fork()
        if worker == 0:
            _work(work, pipe, folder)
        os.close(pipe)
        while os.wait()[0] != worker:
            pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _work(
    work: Callable[[Callable[[dict[str, Any]], None]], None], pipe: int, folder: Path
) -> None:
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(pipe, False)
    for name, below in (("TMPDIR", "tmp"), ("HOME", "home"), ("XDG_CACHE_HOME", "home/.cache")):
        (folder / below).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / below)
    os.environ.pop(INSIDE, None)
    os.setsid()  # below nohup SIGHUP would be ignored, which tests send to themselves
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        work(lambda report: (os.write(pipe, json.dumps(report).encode() + b"\n"), None)[1])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
