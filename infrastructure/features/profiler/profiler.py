"""Recording of some steps with the PyTorch profiler, as a trace and a table for the report.

The trace opens in https://ui.perfetto.dev or chrome://tracing. Recording slows the steps down, but
does not change their results.
"""

import logging
from pathlib import Path

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.best_effort import BestEffort
from infrastructure.core.files import write_json
from infrastructure.core.messages import phrase
from infrastructure.features.profiler.report import PROFILE_FILE
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

logger = logging.getLogger(__name__)

TRACE_FILE = Path("logs") / "performance" / "trace.json"
WARM_UP_STEPS = 2  # of this process: the first steps allocate, compile and fill caches
MAX_ROWS = 30


class ProfilerObserver(Observer):
    """An observer that profiles `num_steps` steps after two warm-up steps, once per process.

    It writes `logs/performance/trace.json` and `profile.json`. The latter is a table of the
    operations with the most self time: name, calls, and seconds on the CPU and on the GPU.
    """

    def __init__(self, run_directory: Path, num_steps: int) -> None:
        self.run_directory, self.num_steps = run_directory, num_steps
        self._num_seen = 0
        self._first_step = 0
        self._profiler: torch.profiler.profile | None = None
        self._is_done = False
        self._best_effort = BestEffort(logger, "profiler.failed")

    def step_start(self, state: TrainingState) -> None:
        if not self._is_done and self._profiler is None and self._num_seen == WARM_UP_STEPS:
            self._best_effort.attempt("the profiler", lambda: self._begin(state))

    def step_end(self, state: TrainingState) -> None:
        self._num_seen += 1
        if self._profiler is not None and self._num_seen >= WARM_UP_STEPS + self.num_steps:
            self._best_effort.attempt("the profiler", lambda: self._finish(state))

    def train_end(self, state: TrainingState) -> None:
        if self._profiler is not None:
            self._best_effort.attempt("the profiler", lambda: self._finish(state))

    def _begin(self, state: TrainingState) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self._first_step = state.step + 1
        self._profiler.start()

    def _finish(self, state: TrainingState) -> None:
        profiler, self._profiler, self._is_done = self._profiler, None, True
        assert profiler is not None
        profiler.stop()
        trace = self.run_directory / TRACE_FILE
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
        rows = table_of(profiler)
        steps = {"first_step": self._first_step, "last_step": state.step}
        write_json(
            self.run_directory / PROFILE_FILE, {**steps, "trace": str(TRACE_FILE), "rows": rows}
        )
        logger.info(
            phrase(
                "profiler.steps_profiled",
                first_step=self._first_step,
                last_step=state.step,
                trace=trace,
            )
        )


def table_of(profiler: torch.profiler.profile) -> list[dict[str, object]]:
    """Return the operations with the most self time, on the GPU if there is one."""
    rows = [
        {
            "name": event.key,
            "calls": event.count,
            "processor_seconds": event.self_cpu_time_total / 1e6,
            "gpu_seconds": event.self_device_time_total / 1e6,
        }
        for event in profiler.key_averages()
    ]
    rows.sort(key=lambda row: (row["gpu_seconds"], row["processor_seconds"]), reverse=True)
    return rows[:MAX_ROWS]


def profiler_of(config: DeploymentConfig, run_directory: Path) -> ProfilerObserver | None:
    """Return the profiler of a run, if the configuration has steps for it."""
    num_steps = int(config.value("monitor.profile_steps"))
    return ProfilerObserver(run_directory, num_steps) if num_steps else None
