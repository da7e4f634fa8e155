"""A real notebook kernel in a process of its own: what cells print and show, interrupts, kills."""

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.notebooks.kernels import kernels_are_forks

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0


class Cell:
    """What a cell has shown so far.

    Attributes:
        text: what it printed.
        shown: display id → the newest bundle of mime types.
        num_updates: how often something shown was replaced.
        error, traceback: the last line of its traceback, and what is shown of it; or nothing.
    """

    def __init__(self) -> None:
        self.text = ""
        self.shown: dict[str, dict[str, str]] = {}
        self.num_updates = 0
        self.error, self.traceback = "", list[str]()

    def take(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            self.text += content["text"]
        elif kind == "error":
            self.error = f"{content['ename']}: {content['evalue']}"
            self.traceback = content["traceback"]
        elif kind in ("display_data", "update_display_data"):
            name = content["transient"].get("display_id", str(len(self.shown)))
            self.num_updates += kind == "update_display_data"
            self.shown[name] = content["data"]


class Kernel:
    """A kernel that is ready."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def run(self, code: str) -> Cell:
        """Run a cell to its end."""
        self._begin(code)
        return self._listen()

    def run_until(self, code: str, is_enough: Callable[[Cell], bool]) -> Cell:
        """Run a cell until it has shown enough, which must be before its end."""
        self._begin(code)
        self._listen(is_enough)
        assert is_enough(self._cell), f"{self._cell.text}\n{self._cell.error}"
        return self._cell

    def interrupt(self) -> Cell:
        """Press the button beside the running cell, and wait for its end."""
        self.manager.interrupt_kernel()
        return self._listen()

    def kill(self) -> None:
        """SIGKILL for the kernel and its whole process group, as a restart does."""
        os.killpg(os.getpgid(self.pid), signal.SIGKILL)

    def _begin(self, code: str) -> None:
        """After an error the kernel would pass over a cell that comes at once."""
        self._request_id, self._cell = self.client.execute(code, stop_on_error=False), Cell()

    def _listen(self, is_enough: Callable[[Cell], bool] = lambda cell: False) -> Cell:
        deadline = time.monotonic() + SECONDS
        while not is_enough(self._cell):
            assert time.monotonic() < deadline, self._cell.text
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != self._request_id:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            self._cell.take(kind, content)
        return self._cell


@contextmanager
def start_kernel(folder: Path, *, is_fork: bool = True) -> Iterator[Kernel]:
    """A kernel in `folder` that can import the project and its tests; gone at the end.

    Args:
        is_fork: it has PyTorch already, and says nothing of what its import says.
    """
    manager = KernelManager(kernel_name="python3")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with kernels_are_forks() if is_fork else nullcontext():
        manager.start_kernel(cwd=str(folder), env=environment)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        client.context.destroy(linger=0)
