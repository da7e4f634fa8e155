"""The live panel: a display of a run below the cell, which the cell's own thread redraws.

The panel reads only the run's directory, so a run in the cell, in a separate process, or of another
user looks the same. A failure in the panel is reported once and switches the panel off, but never
stops a run.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from colab.panel_page import panel_html, panel_text
from infrastructure.core.best_effort import BestEffort
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.monitoring.drawing.html import element
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_view import view_of
from infrastructure.monitoring.report.live_parts import MAX_CPU_SHARE, MAX_LONGEST_SECONDS
from infrastructure.run.latest_checkpoint import SavedSteps

LOOK_SECONDS = 1.0
PANEL = "the live panel"

log = logging.getLogger(__name__)


class CellOutput:
    """One output area of the running cell. New content replaces the earlier content."""

    def __init__(self) -> None:
        self._handle = None

    def show(self, html: str, text: str) -> None:
        """Show `html`, or `text` if HTML cannot be shown."""
        bundle = {"text/html": html, "text/plain": text}
        if self._handle is None:
            display = require("IPython.display", "notebook.live_panel").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


class LivePanel:
    """A display of a run, drawn at most once a second, using at most 1% of the time.

    Args:
        run_path: the run's directory.
        advice: what the user can do while the run trains.
        output: the output in which the panel is shown.
        clock, cpu_clock: return the time in seconds, and the processor time of the calling thread.
    """

    def __init__(
        self,
        run_path: Path,
        advice: str = "",
        output: CellOutput | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.run_path, self.advice = run_path, advice
        self._output = output or CellOutput()
        self._clock, self._cpu_clock = clock, cpu_clock
        self._saved = SavedSteps(run_path)
        self._run: LiveRun | None = None
        self._best_effort = BestEffort(log)
        self._next_look = float("-inf")

    @property
    def has_ended(self) -> bool:
        """True if the run has ended or cannot be shown."""
        if self._best_effort.is_off(PANEL) or self._is_gone():
            return True
        return self._run is not None and self._run.has_ended

    def look(self) -> None:
        """Draw the run, unless the panel was drawn too recently."""
        if self._clock() >= self._next_look:
            self._best_effort.attempt(PANEL, self._draw)

    def update(
        self, step: int, loss: float | None = None, tokens_per_second: float | None = None
    ) -> None:
        """Draw the run after a training step, unless the panel was drawn too recently."""
        self.look()

    def close(self) -> None:
        """Draw the run after its last step, before its model is saved and evaluated."""
        self._best_effort.attempt(PANEL, self._draw)

    def finish(self) -> None:
        """Draw the run for the last time, and close its files."""
        self._best_effort.attempt(PANEL, self._draw)
        if self._run is not None:
            self._run.close()

    def _is_gone(self) -> bool:
        """Return whether the run ended before its first step, so that its directory was removed."""
        return self._run is not None and not self.run_path.is_dir()

    def _draw(self) -> None:
        if self._is_gone():
            text = phrase("notebook.run_without_a_step", run=self.run_path.name)
            self._output.show(element("p", text), text)
            return
        began = self._cpu_clock()
        if self._run is None:
            self._run = LiveRun(self.run_path)
        else:
            self._run.refresh()
        view, saved = view_of(self._run), self._saved.newest()
        html = panel_html(view, saved, self.advice, time.time())
        self._output.show(html, panel_text(view, saved))
        cost_seconds = (self._cpu_clock() - began) / MAX_CPU_SHARE
        wait_seconds = min(MAX_LONGEST_SECONDS, max(LOOK_SECONDS, cost_seconds))
        self._next_look = self._clock() + wait_seconds
