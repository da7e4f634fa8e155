"""Snapshots of runs for the live page. All viewers share a snapshot, and snapshots are made at a
limited rate.
"""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.features.dashboard.page import Look
from infrastructure.features.dashboard.sections import no_run, sections_of
from infrastructure.monitoring.drawing.formatting import format_share
from infrastructure.monitoring.drawing.html import element
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_list import runs_in
from infrastructure.monitoring.records.run_rows import RunRow, RunRows
from infrastructure.monitoring.records.run_view import view_of
from infrastructure.monitoring.report.live_parts import MAX_CPU_SHARE, MAX_LONGEST_SECONDS

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
ENDED_LOOK_SECONDS = 10.0
MAX_OPEN_RUNS = 8


class Looks:
    """The snapshots of the runs in a folder. The object can be used from any number of threads.

    Args:
        output_dir: the folder of the runs; it need not exist yet.
        run: the run to show by default, or None for the newest.
        cpu_clock: a function that returns the CPU seconds of the calling thread.
    """

    def __init__(
        self,
        output_dir: Path,
        run: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.output_dir = output_dir
        self.run = run
        self.clock = clock
        self.cpu_clock = cpu_clock
        self._rows = RunRows(output_dir if run is None else run.parent)
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, LiveRun] = OrderedDict()
        self._is_closed = False
        self._warned: set[Path] = set()
        self._looks: dict[Path | None, tuple[float, Look]] = {}

    def look(self, name: str | None = None) -> Look:
        """Return a recent snapshot of a run, or of the default run.

        Raises:
            ValueError: if there is no such run.
            ConnectionAbortedError: if `close` was called.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError("the dashboard was closed")
            path = self._path_of(name)
            made = self._looks.get(path)
            if made is None or self.clock() >= made[0]:
                made = self._make(path)
                self._looks = {p: m for p, m in self._looks.items() if p in self._open}
                self._looks[path] = made
            return made[1]

    def close(self) -> None:
        """Close the files of the runs. Later requests raise an error."""
        with self._lock:
            self._is_closed = True
            for run in self._open.values():
                run.close()
            self._open.clear()

    def _path_of(self, name: str | None) -> Path | None:
        """Return the path of the run to show; None if there is no run.

        Only known runs are accepted.
        """
        if name is None and self.run is not None:
            return self.run
        runs = {path.name: path for path in runs_in(self._rows.folder)}
        if self.run is not None:
            runs[self.run.name] = self.run
        if name is None:
            return next(reversed(runs.values()), None)
        if name not in runs:
            raise InputError("dashboard.unknown_run", name=name, folder=self._rows.folder)
        return runs[name]

    def _make(self, path: Path | None) -> tuple[float, Look]:
        """Make a new snapshot. Return it with the time from which the next one may be made."""
        began = self.cpu_clock()
        look = self._look_at(path)
        cost_seconds = (self.cpu_clock() - began) / MAX_CPU_SHARE
        wait = min(MAX_LONGEST_SECONDS, max(look.next_seconds, math.ceil(cost_seconds)))
        return self.clock() + 0.9 * wait, replace(look, next_seconds=wait)

    def _look_at(self, path: Path | None) -> Look:
        if path is None:
            return Look("Temper", no_run(str(self.output_dir)), LOOK_SECONDS)
        try:
            run = self._opened(path)
            return look_at(run, self._rows.read())
        except Exception as error:  # any damage to the files leads to the same page
            if path not in self._warned:
                logger.warning(phrase("dashboard.run_not_shown", path=path, error=error))
            self._warned.add(path)
            message = phrase(
                "dashboard.run_not_shown_on_page", error_type=type(error).__name__, error=error
            )
            sections = {"notices": element("section", message, css_class="notice")}
            return Look(f"{path.name} · Temper", sections, ENDED_LOOK_SECONDS)

    def _opened(self, path: Path) -> LiveRun:
        """Return a run with its newest records.

        Close runs that have not been requested for some time.
        """
        run = self._open.get(path)
        if run is None:
            run = self._open[path] = LiveRun(path)
        else:
            run.refresh()
        self._open.move_to_end(path)
        while len(self._open) > MAX_OPEN_RUNS:
            self._open.popitem(last=False)[1].close()
        return run


def look_at(run: LiveRun, rows: list[RunRow]) -> Look:
    """Return a snapshot of the live page that shows one run."""
    view = view_of(run)
    title, wait = f"{view['title']} · Temper", ENDED_LOOK_SECONDS
    if not view["is_over"]:
        wait = LOOK_SECONDS
        if view["share_done"] is not None:
            title = f"{format_share(view['share_done'])} · {title}"
    return Look(title, sections_of(view, rows), wait)
