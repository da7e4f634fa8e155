"""A sweep: a search for the best settings that trains one trial after another.

    <output_dir>/<sweep>/sweep.json · journal.jsonl   the search space and the results: see `study`
                        /<run>/                       the run of each trial, as of `temper train`
                        /.trials/<number>/            the status of a trial's process (`detached`)
                        /runner                       held by the process that runs the sweep

Optuna suggests the values and decides which trial to prune. Each trial is a separate process.
After a kill, both the sweep and the run of the current trial resume. This module does not load
torch.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import differing_keys, result_settings
from infrastructure.config.merging.precedence import GivenValue
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError, InputError, TemperError
from infrastructure.core.files import make_directory
from infrastructure.core.json_text import as_object
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.data.readers.sources import data_files_hash
from infrastructure.deployment import detached
from infrastructure.deployment.detached import DetachedTraining, ReportLine
from infrastructure.features.sweep.search_space import (
    MOST_VALUES,
    SEARCH,
    Dimension,
    settings_of,
    short_value,
)
from infrastructure.features.sweep.study import (
    PRUNED,
    REASON,
    RECORD_NAME,
    RUN,
    SAME_AS,
    SECONDS,
    Goal,
    mend_journal,
    open_study,
)
from infrastructure.monitoring.drawing.formatting import format_duration, format_number, is_number
from infrastructure.run.directory import RunDirectory, RunStatus
from infrastructure.run.finalize import read_summary
from infrastructure.run.output_dir import writable

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

TRIALS, RUNNER_NAME = ".trials", "runner"
LEAST_SECONDS = 1.0  # the shortest time that a trial gets before a deadline
MOST_KILLS = 3  # of one trial's process in one call
MOST_FAILURES = 3  # of the first trials
OBSERVER = "infrastructure.features.sweep.trial:trial_observer"


@dataclass(frozen=True)
class TrialResult:
    """The state and the result of a trial.

    Attributes:
        state: running, complete, pruned or fail, as in Optuna.
        value: the value of the metric; for a pruned trial, the last one that was measured.
        values: the tried value of each dimension, by the dimension's name.
        seconds: the duration of the training, over all processes.
        run: the directory of the trial's run.
        same_as: the number of an earlier trial with the same values, so that this trial was not
            trained; None: no such trial.
    """

    number: int
    state: str
    value: float | None
    values: Mapping[str, Any]
    seconds: float | None = None
    run: str | None = None
    reason: str | None = None
    same_as: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the result as values for JSON."""
        return asdict(self)


class _Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """The exception for a trial that was stopped before its end. The sweep stops and can resume."""


class Sweep:
    """The search for the best values of some settings.

    Args:
        config: the settings that all trials share. `run_name` is the name of the sweep.

    Raises:
        ValueError: if a sweep with this name has different settings, goal or data.
    """

    def __init__(self, config: DeploymentConfig, dimensions: Sequence[Dimension], goal: Goal):
        self.config, self.dimensions, self.goal = config, dimensions, goal
        self.record = self._record()
        spelled = json.dumps(self.record, sort_keys=True, default=str)
        name = config.run_name or hashlib.sha256(spelled.encode()).hexdigest()[:8]
        self.folder = Path(config.output_dir).absolute() / f"sweep-{name}"
        self._check_record()

    def _record(self) -> dict[str, object]:
        """Return the values that must not change when the sweep is resumed."""
        searched = tuple(one.key for one in self.dimensions if one.entry is None)
        settings = result_settings(self.config)
        return {
            "search": sorted(one.describe() for one in self.dimensions),
            "goal": self.goal.to_dict(),
            "settings": {key: v for key, v in settings.items() if key not in searched},
        }

    def _check_record(self) -> None:
        """Check that an earlier sweep with this name has the same settings, goal and data."""
        try:
            recorded = read_record(self.folder / RECORD_NAME)
        except FileNotFoundError:
            return
        except DamagedFileError as error:
            raise InputError("sweep.record_damaged", error=error) from error
        both = as_object(recorded["settings"]), as_object(self.record["settings"])  # type: ignore[arg-type]
        differing = [*differing_keys(*both)]
        differing += [key for key in ("search", "goal") if recorded[key] != self.record[key]]
        if differing:
            raise InputError(
                "sweep.settings_differ",
                folder=self.folder,
                names=", ".join(differing),
            )
        if recorded.get("data") != data_files_hash(self.config.data):
            raise InputError("sweep.data_changed", folder=self.folder)

    def run(
        self,
        num_trials: int,
        report: ReportLine = print,
        deadline_seconds: float | None = None,
    ) -> bool:
        """Train until there are `num_trials` trials or the time is up. Resume killed trials.

        Returns:
            True if no trial is left to train.

        Raises:
            MissingPackageError: if Optuna is not installed.
            ValueError: if another process runs the sweep, or all of the first trials failed.
            KeyboardInterrupt: if a signal requested a stop; the current trial was saved, and
                resumes when the sweep runs again.
        """
        ends = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        writable(self.folder.parent)
        make_directory(self.folder)
        with (
            detached.only_runner(
                self.folder / RUNNER_NAME, "sweep.already_running", folder=self.folder
            ),
            interrupt_on_signals(),
        ):
            self._begin(report)
            while (trial := self._next(num_trials)) is not None:
                seconds_left = None if ends is None else ends - time.monotonic()
                if seconds_left is not None and seconds_left < LEAST_SECONDS:
                    report(phrase("sweep.deadline_reached"))
                    return False
                try:
                    self._try(trial, ends, report)
                except _Interrupted as end:
                    report(phrase("sweep.trial_stopped", number=trial.number, outcome=end))
                    return False
                self._report_progress(trial.number, num_trials, report)
            return True

    def results(self) -> list[TrialResult]:
        """Return all trials so far, in order."""
        if not (self.folder / RECORD_NAME).exists():
            return []
        return [_result(trial) for trial in self._begun(self._study())]

    def best(self) -> TrialResult | None:
        """Return the completed trial with the best value; None if no trial is complete."""
        complete = [one for one in self.results() if one.state == "complete"]
        sign = 1 if self.goal.direction == "minimize" else -1
        return min(complete, key=lambda one: sign * (one.value or 0.0), default=None)

    def settings_of(self, result: TrialResult) -> list[GivenValue]:
        """Return the searched settings with the values of a trial."""
        values = {one.name: one.value_of(result.values[one.name]) for one in self.dimensions}
        return settings_of(self.dimensions, values, self.config)

    def _begin(self, report: ReportLine) -> None:
        place = self._living()
        if place is None:
            mend_journal(self.folder)
        if not (self.folder / RECORD_NAME).exists():
            record = {**self.record, "data": data_files_hash(self.config.data)}
            write_record(self.folder / RECORD_NAME, record)
        study = self._study()
        if self.goal.sampler == "grid":
            for values in grid(self.dimensions):
                study.enqueue_trial(values, skip_if_exists=True)
        done = [one for one in self._begun(study) if one.state.is_finished()]
        report(
            phrase("sweep.progress", folder=self.folder, count=len(done))
            if done
            else f"Sweep {self.folder}"
        )

    def _living(self) -> DetachedTraining | None:
        """Return the process of a trial that outlived an earlier sweep process, or None."""
        places = [DetachedTraining(path) for path in (self.folder / TRIALS).glob("*/")]
        return next((place for place in places if place.is_alive), None)

    def _study(self, number: int | None = None) -> "Study":
        return open_study(self.folder, self.goal, self.config.training.seed, number)

    def _begun(self, study: "Study") -> "list[FrozenTrial]":
        """Return the trials that have started. A grid search also has trials that have not."""
        return [one for one in study.get_trials(deepcopy=False) if one.state.name != "WAITING"]

    def _next(self, num_trials: int) -> "Trial | None":
        """Return a killed trial to resume, or a new trial; None if none is left to train."""
        from optuna.trial import Trial

        trials = self._begun(self._study())
        running = next((one for one in trials if one.state.name == "RUNNING"), None)
        if running is not None:
            return Trial(self._study(running.number), running._trial_id)
        if len(trials) >= num_trials or self._are_all_tried(trials):
            return None
        return self._study(len(trials)).ask()

    def _are_all_tried(self, trials: "Sequence[FrozenTrial]") -> bool:
        tried = {json.dumps(one.params, sort_keys=True) for one in trials}
        return len(tried) >= self._num_combinations()

    def _num_combinations(self) -> float:
        values = [one.values() for one in self.dimensions]
        return math.prod(math.inf if some is None else len(some) for some in values)

    def _try(self, trial: "Trial", ends: float | None, report: ReportLine) -> None:
        """Train a trial until `ends`, if given, and record how it ended."""
        values = {one.name: one.suggest(trial) for one in self.dimensions}
        shown = " ".join(f"{name}={short_value(value)}" for name, value in values.items())
        report(f"Trial {trial.number}: {shown}")
        earlier = self._trained_before(trial)
        if earlier is not None:
            self._end_as_earlier(trial, earlier)
            report(
                phrase(
                    "sweep.trial_repeats_earlier",
                    number=trial.number,
                    earlier=earlier.number,
                )
            )
            return
        try:
            place = self._trained(trial, values, ends, report)
        except (ValueError, TemperError, OSError) as error:
            self._failed(trial, redact(str(error)))
            return
        self._record_end(trial, place)

    def _trained_before(self, trial: "Trial") -> "FrozenTrial | None":
        """Return the first trial with the same values that was trained, or None."""
        others = self._begun(trial.study)[: trial.number]
        ended = [one for one in others if one.state.name in ("COMPLETE", "PRUNED")]
        return next((one for one in ended if one.params == trial.params), None)

    def _end_as_earlier(self, trial: "Trial", earlier: "FrozenTrial") -> None:
        trial.set_user_attr(SAME_AS, earlier.number)
        trial.set_user_attr(RUN, earlier.user_attrs.get(RUN))
        if earlier.state.name == "COMPLETE":
            trial.study.tell(trial, earlier.value)
        else:
            trial.study.tell(trial, state=earlier.state)

    def _trained(
        self,
        trial: "Trial",
        values: Mapping[str, Any],
        ends: float | None,
        report: ReportLine,
    ) -> DetachedTraining:
        """Train a trial to its end, and return its process. Resume its run if there is one.

        Raises:
            ValueError, TemperError: if the trial cannot be trained.
            KeyboardInterrupt: if a signal requested a stop; the trial was saved.
        """
        place = DetachedTraining(self.folder / TRIALS / str(trial.number))
        began = time.monotonic()
        try:
            if place.is_alive:
                report(
                    phrase(
                        "sweep.trial_still_training",
                        number=trial.number,
                        trainer=place.trainer,
                    )
                )
                detached.wait(place)
            for _ in range(MOST_KILLS):
                if self._has_ended(trial, place):
                    return place
                if place.run_path is not None:
                    report(phrase("sweep.trial_resuming", number=trial.number, run=place.run_path))
                make_directory(place.folder)
                left = None if ends is None else max(LEAST_SECONDS, ends - time.monotonic())
                config = self._config_of(trial.number, values, left)
                given = {
                    "folder": str(self.folder),
                    "number": trial.number,
                    "goal": self.goal.to_dict(),
                }
                detached.start(config, (), place.folder, place.run_path, (OBSERVER, given))
                detached.wait(place)
                if place.exit_code() >= 0:
                    break
                report(f"Trial {trial.number}: {detached.fate(place)}")
        except KeyboardInterrupt:
            if place.is_alive:
                report(phrase("sweep.trial_saving", number=trial.number))
                detached.end(place)
            raise
        finally:
            self._add_seconds(trial, time.monotonic() - began)
        if place.exit_code() < 0:
            raise InputError(
                "sweep.trial_killed_repeatedly", count=MOST_KILLS, fate=detached.fate(place)
            )
        return place

    def _config_of(
        self, number: int, values: Mapping[str, Any], seconds_left: float | None
    ) -> DeploymentConfig:
        config = self.config.changed(
            [
                *settings_of(self.dimensions, values, self.config),
                GivenValue("output_dir", str(self.folder), SEARCH),
                GivenValue("run_name", f"trial-{number}", SEARCH),
            ]
        )
        if seconds_left is not None:
            config = config.changed(
                [GivenValue("training.deadline", f"{seconds_left:.3f}s", SEARCH)]
            )
        return config

    def _has_ended(self, trial: "Trial", place: DetachedTraining) -> bool:
        """Return whether the trial is pruned or its run is finished."""
        if place.run_path is None:
            return False
        is_pruned = PRUNED in self._frozen(trial).user_attrs
        return is_pruned or RunDirectory(place.run_path).is_finished()

    def _frozen(self, trial: "Trial") -> "FrozenTrial":
        """Return the trial as recorded in the journal, to which the trial's own process also
        writes.
        """
        return self._study().get_trials(deepcopy=False)[trial.number]

    def _record_end(self, trial: "Trial", place: DetachedTraining) -> None:
        """Record how the run of a trial ended: finished, pruned, or failed.

        Raises:
            _Interrupted: if the run was stopped before its end.
        """
        from optuna.trial import TrialState

        if place.run_path is None:
            self._failed(trial, detached.last_line(place))
            return
        trial.set_user_attr(RUN, str(place.run_path))
        if PRUNED in self._frozen(trial).user_attrs:
            trial.study.tell(trial, state=TrialState.PRUNED)
            return
        summary = read_summary(RunDirectory(place.run_path))
        status = summary.get("status")
        if status == RunStatus.STOPPED:
            raise _Interrupted(f"was stopped ({summary.get('reason') or summary.get('signal')})")
        if status != RunStatus.FINISHED:
            self._failed(trial, str(summary.get("error") or detached.last_line(place)))
            return
        value = _measured(summary.get("after") or {}, self.goal.metric)
        if value is None:
            self._failed(trial, phrase("sweep.trial_metric_not_finite", metric=self.goal.title))
        else:
            trial.study.tell(trial, value)

    def _failed(self, trial: "Trial", reason: str) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr(REASON, reason)
        trial.study.tell(trial, state=TrialState.FAIL)

    def _add_seconds(self, trial: "Trial", seconds: float) -> None:
        before = self._frozen(trial).user_attrs.get(SECONDS, 0.0)
        trial.set_user_attr(SECONDS, round(before + seconds, 3))

    def _report_progress(self, number: int, num_trials: int, report: ReportLine) -> None:
        """Report the outcome of a trial, and estimate the time of the remaining ones.

        Raises:
            ValueError: if all of the first trials failed.
        """
        results = self.results()
        result, best = results[number], self.best()
        line = f"Trial {number}: {outcome(result, self.goal)}"
        if best is not None and best.number != number:
            line += phrase(
                "sweep.best_so_far",
                best=format_number(best.value or 0.0),
                number=best.number,
            )
        trained = [one.seconds for one in results if one.seconds and one.state != "fail"]
        left = min(num_trials, self._num_combinations()) - len(results)
        if trained and left > 0:
            mean = sum(trained) / len(trained)
            time_left = format_duration(mean * left)
            line += phrase("sweep.time_left", left=left, time=time_left)
        report(line)
        if len(results) >= MOST_FAILURES and all(one.state == "fail" for one in results):
            raise InputError("sweep.first_trials_failed", count=len(results), reason=result.reason)


def grid(dimensions: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Return all combinations of the dimensions' values, as Optuna's journal stores them.

    Raises:
        ValueError: if there are infinitely many, or more than can reasonably be trained.
    """
    combinations: list[dict[str, Any]] = [{}]
    for dimension in dimensions:
        values = dimension.stored_values()
        if values is None:
            raise InputError("sweep.grid_values_infinite", search=dimension.describe())
        combinations = [{**one, dimension.name: value} for one in combinations for value in values]
        if len(combinations) > MOST_VALUES:
            raise InputError("sweep.grid_too_large", limit=MOST_VALUES)
    return combinations


def outcome(result: TrialResult, goal: Goal) -> str:
    """Describe how a trial ended."""
    value = "" if result.value is None else f"{goal.title} {format_number(result.value)}"
    if result.state == "complete":
        return value
    if result.state == "pruned":
        return f"pruned at {value}" if value else "pruned"
    return (
        f"failed: {result.reason}" if result.state == "fail" else phrase("sweep.trial_unfinished")
    )


def _result(trial: "FrozenTrial") -> TrialResult:
    attributes = trial.user_attrs
    known = trial.intermediate_values
    last = known[max(known)] if known else None
    has_value = trial.state.name == "COMPLETE"
    return TrialResult(
        number=trial.number,
        state=trial.state.name.lower(),
        value=trial.value if has_value else last,
        values=dict(trial.params),
        seconds=attributes.get(SECONDS),
        run=attributes.get(RUN),
        reason=attributes.get(REASON),
        same_as=attributes.get(SAME_AS),
    )


def _measured(after: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric from the `after` part of summary.json, or None if it is not finite.

    For exact match, this is the value over all tasks.
    """
    value = after.get(metric, after.get(metric.removeprefix("eval_")))
    if isinstance(value, Mapping):
        value = value.get("all")
    return float(value) if is_number(value) and math.isfinite(value) else None
