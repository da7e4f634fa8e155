"""A real kernel that runs the cells of a notebook, and can be killed while it does."""

import contextlib
import os
import queue
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.forks import forked_python
from tests.notebooks.notebook_files import assertions_of, cells_of, text_of

CELL_SECONDS = 300.0
LOOK_SECONDS = 0.002


class CellError(AssertionError):
    """A cell raised; the text is its traceback."""


class RunningNotebook:
    """The code cells of a notebook, run one after the other by a kernel of its own."""

    def __init__(self, kernel: KernelManager, client: BlockingKernelClient, path: Path) -> None:
        self.kernel, self.client = kernel, client
        self.codes = [text_of(cell) for cell in cells_of(path)]
        self.assertions = [assertions_of(cell) for cell in cells_of(path)]

    @property
    def pid(self) -> int:
        return int(self.kernel.provisioner.pid)

    def kill(self) -> None:
        """SIGKILL to the kernel, and to nothing else."""
        os.kill(self.pid, signal.SIGKILL)

    def run_all(self, look_seconds: float = LOOK_SECONDS) -> Iterator[int]:
        """Run the cells; meanwhile the caller gets the number of the cell, again and again.

        Args:
            look_seconds: how long to listen to the kernel in between.

        Raises:
            CellError: a cell raised, or took too long.
        """
        for number, code in enumerate(self.codes):
            yield from self._run(number, code, look_seconds)

    def run(self, code: str) -> None:
        """Run what is no cell of the notebook.

        Raises:
            CellError: as `run_all`.
        """
        for _ in self._run(-1, code, look_seconds=1.0):
            pass

    def run_with_assertions(self) -> None:
        """Run the cells, and after each one what its notebook says that must hold then.

        Raises:
            CellError: as `run_all`.
        """
        for number, (code, assertions) in enumerate(zip(self.codes, self.assertions, strict=True)):
            for lines in (code, "\n".join(assertions)):
                for _ in self._run(number, lines, look_seconds=1.0):
                    pass

    def _run(self, number: int, code: str, look_seconds: float) -> Iterator[int]:
        request_id = self.client.execute(code, allow_stdin=False)
        deadline = time.monotonic() + CELL_SECONDS
        while (reply := self._reply_to(request_id, look_seconds)) is None:
            yield number
            if time.monotonic() > deadline:
                raise CellError(f"cell {number} took longer than {CELL_SECONDS:.0f} s")
        if reply["status"] != "ok":
            raise CellError("\n".join(reply.get("traceback", [str(reply)])))

    def _reply_to(self, request_id: str, look_seconds: float) -> dict[str, Any] | None:
        with contextlib.suppress(queue.Empty):
            message = self.client.get_shell_msg(timeout=look_seconds)
            if message["parent_header"].get("msg_id") == request_id:
                return dict(message["content"])
        return None


def kernels_are_forks() -> Any:
    """Inside, kernels that this process starts are forks of it, and not Pythons of their own."""
    return mock.patch("jupyter_client.launcher.Popen", forked_python)


@contextlib.contextmanager
def notebook_in_kernel(
    path: Path, environment: Mapping[str, str], kernel_name: str = "python3"
) -> Iterator[RunningNotebook]:
    """A new kernel in the notebook's folder; it is gone at the end, if it was not before."""
    kernel = KernelManager(kernel_name=kernel_name)
    kernel.start_kernel(cwd=str(path.parent), env={**os.environ, **environment})
    client = kernel.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        yield RunningNotebook(kernel, client, path)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
