"""Sinks for the trackers Trackio and Weights & Biases.

Trackers get the numbers and the run's name. They do not get the configuration, which may contain
paths, nor the console output. Keys, accounts and their own system metrics are up to these packages.
A resumed run continues its tracked run. A tracker cannot drop the steps that are repeated.
"""

import os
from pathlib import Path
from typing import Any, ClassVar

from infrastructure.core.messages import phrase
from infrastructure.core.optional import refuse_missing, require
from infrastructure.features.metric_exporters.tensorboard_sink import tracked_numbers
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.training.metrics.sinks import Sink

PROJECT = "temper"


def _imported(package: str) -> Any:
    return require(package, phrase("metric_exporters.sink", name=package))


class TrackioSink(Sink):
    """A sink for Trackio, to be viewed with `trackio show`.

    The project is "temper" unless the variable TRACKIO_PROJECT is set.

    Raises:
        MissingPackageError: trackio is not installed. The text contains the pip command.
    """

    name = "trackio"

    def __init__(self, run_directory: Path) -> None:
        self._run_name = run_directory.name
        self._trackio: Any = _imported("trackio")
        self._is_open = False
        self._first_new = self._highest = 0

    @staticmethod
    def check_usable() -> None:
        """Raise MissingPackageError if trackio is not installed."""
        refuse_missing("trackio", phrase("metric_exporters.sink", name="trackio"))

    def write(self, record: Record) -> None:
        if not self._is_open:
            project = os.environ.get("TRACKIO_PROJECT", PROJECT)
            run = self._trackio.init(
                project=project, name=self._run_name, resume="allow", embed=False
            )
            self._first_new = getattr(run, "_next_step", 0)  # after the steps that it already has
            self._is_open = True
        step = int(record["step"])
        if step < self._first_new:  # already logged; Trackio cannot drop steps
            return
        self._highest = max(self._highest, step)
        self._trackio.log(tracked_numbers(record), step=step)

    def truncate_after(self, step: int) -> None:
        if self._is_open:
            self._first_new = self._highest + 1

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._trackio.finish()


class WandbSink(Sink):
    """A sink for Weights & Biases. Its environment variables (WANDB_PROJECT, …) take effect.

    Raises:
        MissingPackageError: wandb is not installed. The message contains the pip command.
    """

    name = "wandb"
    SETTINGS: ClassVar = {"console": "off", "silent": True}  # no console output is sent

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._wandb: Any = _imported("wandb")
        self._run: Any = None

    @staticmethod
    def check_usable() -> None:
        """Raise MissingPackageError if wandb is not installed."""
        refuse_missing("wandb", phrase("metric_exporters.sink", name="wandb"))

    def write(self, record: Record) -> None:
        if self._run is None:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=self._directory.name,
                id=self._directory.name,
                resume="allow",
                dir=str(self._directory),
                settings=self.SETTINGS,
            )
            # wandb's own step counter only increases, but a run may return to an earlier step.
            self._run.define_metric("*", step_metric="step")
        self._run.log({"step": int(record["step"]), **tracked_numbers(record)})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()
