"""A real run that is watched, and one that is not."""

import math
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.resource_config import AlertThresholds
from infrastructure.config.sources.load import load_config
from infrastructure.models.flops import arithmetic_of
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.monitoring.logging_config import TRAINING_FILE
from infrastructure.monitoring.training_monitor import (
    ALERTS_FILE,
    PERFORMANCE_FILE,
    SYSTEM_FILE,
    TrainingMonitor,
)
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import StepRewards, TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.loop import loop
from infrastructure.training.observers import monitoring_setup
from infrastructure.training.observers.monitoring_setup import (
    MonitorObserver,
    RunLogObserver,
    monitoring_hooks,
    seldom,
)
from tests.deployment.runs import deploy, losses, small_settings
from tests.monitoring.scripted_machine import ScriptedGpus, ScriptedMachine
from tests.training.toy import ToyModel
from tests.training.toy_training import Training


def config_of(folder: Path, monitor: dict[str, Any], **more: Any) -> DeploymentConfig:
    return DeploymentConfig(**{**small_settings(folder), "monitor": monitor, **more})


def test_a_run_is_watched_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, metrics_sinks=["jsonl"])
    monitor = {"interval": 0.1, "thresholds": {"gradient_norm": 1e-6}}
    place = {"place": str(tmp_path / "place"), "finish_seconds": 120}
    run, lines = deploy(DeploymentConfig(**settings, monitor=monitor, backup=place))
    samples = read_metrics(run / SYSTEM_FILE)
    assert samples[-1]["step"] == losses(run)[-1][0]
    assert {"backup_age_seconds", "checkpoint_age_seconds", "cache_bytes"} <= set(samples[-1])
    assert samples[-1]["cache_bytes"] > 0
    speeds = read_metrics(run / PERFORMANCE_FILE)
    assert speeds[-1]["tokens_per_second"] > 0
    assert speeds[-1]["model_flops_utilization"] > 0
    alerts = read_metrics(run / ALERTS_FILE)
    assert [a["rule"] for a in alerts if a["rule"] == "gradient_norm"] == ["gradient_norm"]
    assert sum("monitoring.alert_line(severity=warning, " in line for line in lines) == 1
    log = (run / TRAINING_FILE).read_text()
    assert "training.log_training_begins()" in log
    assert "training.training_ended" in log
    page = (run / "report.html").read_text()
    assert "monitoring.system_metrics_heading" in page


def test_monitoring_that_is_off_watches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_MONITORING", "true")
    monkeypatch.chdir(tmp_path)
    config = load_config(keywords=small_settings(tmp_path))
    assert not config.enable_monitoring
    run, _ = deploy(config)
    assert not (run / "logs").exists()
    assert "monitoring.system_metrics_heading" not in (run / "report.html").read_text()


def test_a_costly_probe_is_read_seldom() -> None:
    moments, answers = iter([0.0, 30.0, 59.0, 60.0]), iter([1.0, 2.0])
    probe = seldom(lambda: next(answers), 60.0, clock=lambda: next(moments))
    assert [probe() for _ in range(4)] == [1.0, 1.0, 1.0, 2.0]


FP32 = Precision("fp32", "cpu")


def quiet_monitor(**options: Any) -> TrainingMonitor:
    """Takes a sample at the end only."""
    options = {"interval_seconds": 1000.0, "sinks": []} | options
    return TrainingMonitor(machine=ScriptedMachine(), gpus=ScriptedGpus(), **options)


def watched(directory: Path | None = None, **settings: Any) -> tuple[Training, TrainingMonitor]:
    training = Training(directory, **settings)
    monitor = quiet_monitor()
    hooks = training.loop.hooks.hooks
    hooks.append(MonitorObserver(monitor, training.adapter, FP32))
    return training, monitor


def test_each_logged_step_is_passed_to_the_monitor() -> None:
    training, monitor = watched(log_frequency=2)
    training.run()
    recent = list(monitor.recent_metrics)
    logged = [n for n in range(1, 13) if n % 2 == 0 or n == 1]
    assert [metrics.step for metrics in recent] == logged
    newest = recent[-1]
    assert newest.loss == training.state.loss
    assert newest.batch_size == len(training.state.batch)
    assert newest.gradient_norm is not None
    assert newest.seconds_per_step is not None
    assert 0 < newest.seconds_per_step < 60
    assert newest.samples_per_second is not None
    mean_batch = (6 + 2) / 2  # of steps 11 and 12, of which the last ends an epoch of 20
    assert newest.samples_per_second * newest.seconds_per_step == pytest.approx(mean_batch)
    assert newest.model_flops_utilization is not None
    assert 0 < newest.model_flops_utilization <= 1


def test_a_device_that_was_measured_as_too_slow_is_fully_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitoring_setup, "measure_operations_per_second", lambda *_: 1.0)
    training, monitor = watched()
    training.run()
    used = [metrics.model_flops_utilization for metrics in monitor.recent_metrics]
    assert used[0] == 1.0
    assert all(share is not None and 0 < share <= 1.0 for share in used)


def test_utilization_is_of_the_devices_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring_setup, "measure_operations_per_second", lambda *_: 1e15)
    training, monitor = watched()

    class OfFour(Observer):
        def train_start(self, state: TrainingState) -> None:
            state.num_processes = 4

    training.loop.hooks.hooks.insert(0, OfFour())
    training.run()
    newest = monitor.recent_metrics[-1]
    assert newest.tokens_per_second is not None
    assert newest.samples_per_second is not None
    length = newest.tokens_per_second / newest.samples_per_second
    done = arithmetic_of(training.state.model).per_second(newest.tokens_per_second, length)
    assert newest.model_flops_utilization == pytest.approx(done / 4e15)


def test_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    training, _ = watched(tmp_path / "watched")
    training.run()
    assert torch.equal(training.weights, Training(tmp_path / "alone").run().weights)


def test_waiting_for_data_is_reported_as_a_share_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that shows a little more at each look, and a tenth of a second at each batch."""
    training, monitor = watched()
    whole, now = training.source.train_batches, [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    def slow(*arguments: Any) -> Generator[Sequence[Any], None, None]:
        for batch in whole(*arguments):
            now[0] += 0.1
            yield batch

    for module in (loop, monitoring_setup):
        monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | {"perf_counter": clock}))
    monkeypatch.setattr(training.source, "train_batches", slow)
    training.run()
    shares = [metrics.data_wait_percent for metrics in monitor.recent_metrics]
    assert min(share for share in shares if share is not None) > 30
    assert training.state.data_wait_seconds > 0.1 * len(shares)


def test_speeds_are_those_of_the_steps_since_the_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step waits for one second and takes three; what was done before counts for none."""
    monkeypatch.setattr(monitoring_setup, "measure_operations_per_second", lambda *_: 1.0)
    observer, monitor, state = observed()
    now = [0.0]
    clock = SimpleNamespace(**vars(time) | {"perf_counter": lambda: now[0]})
    monkeypatch.setattr(monitoring_setup, "time", clock)
    state.num_examples, state.num_tokens, state.data_wait_seconds = 5, 50, 9.0
    observer.train_start(state)
    for step, logged in enumerate([False, True, True], start=1):
        state.step = step
        state.data_wait_seconds += 1.0
        state.num_examples += 2 * step
        state.num_tokens += 20 * step
        state.metrics = {"learning_rate": 0.5} if logged else {}
        observer.step_start(state)
        now[0] += 3.0
        observer.step_end(state)
    observer.train_end(state)
    found = [
        (m.step, m.seconds_per_step, m.samples_per_second, m.tokens_per_second, m.data_wait_percent)
        for m in monitor.recent_metrics
    ]
    assert found == [(2, 4.0, 6 / 8, 60 / 8, 25.0), (3, 4.0, 6 / 4, 60 / 4, 25.0)]


def test_checkpoints_get_older_until_the_next(tmp_path: Path) -> None:
    training, monitor = watched(tmp_path)
    age = monitor.probes["checkpoint_age_seconds"]
    assert age() is None
    training.run()
    first, _ = age(), time.sleep(0.02)
    assert first is not None
    later = age()
    assert later is not None
    assert first + 0.02 <= later < 60


def test_one_forward_pass_is_measured_at_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    training, monitor = watched()
    forward, kept = ToyModel.forward, list[bool]()

    def watched_forward(self: Any, *given: Any, **more: Any) -> Any:
        if not self.training:
            kept.append(torch.is_grad_enabled())
        return forward(self, *given, **more)

    monkeypatch.setattr(ToyModel, "forward", watched_forward)
    training.run()
    assert kept
    assert not any(kept)  # no memory is used for gradients
    latency = monitor.probes["inference_latency_seconds"]()
    assert latency is not None
    assert 0 < latency < 60
    assert monitor.recent_samples[-1]["inference_latency_seconds"] == latency


def test_the_monitor_begins_and_ends_with_the_training() -> None:
    training = Training()
    monitor, order = quiet_monitor(), list[str]()
    training.loop.hooks.hooks.append(
        MonitorObserver(
            monitor,
            training.adapter,
            FP32,
            start=lambda: order.append("start"),
            stop=lambda: order.append("stop"),
        )
    )
    training.run()
    assert order == ["start", "stop"]
    assert monitor.recent_samples[-1]["step"] == training.state.step
    monitor.start_monitoring()  # so it had been stopped
    monitor.stop_monitoring()


def test_a_monitor_that_fails_is_reported_once_and_the_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    training, monitor = watched()

    def broken(metrics: object) -> None:
        raise RuntimeError("out of order")

    monitor.log_training_metrics = broken  # type: ignore[method-assign]
    training.run()
    assert training.state.step == training.state.total_steps
    assert caplog.text.count("core.part_is_off(name=the monitor, error=out of order)") == 1
    monitor.start_monitoring()  # it was ended all the same
    monitor.stop_monitoring()


def test_an_overflow_that_a_loss_scaler_looks_for_is_no_alert() -> None:
    state = TrainingState(torch.nn.Linear(1, 1))
    state.metrics = {"learning_rate": 0.1, "grad_norm": float("inf")}
    training = Training()
    reported = []
    for name in ("fp16", "bf16"):
        monitor = quiet_monitor()
        MonitorObserver(monitor, training.adapter, Precision(name, "cpu")).step_end(state)
        reported.append(monitor.recent_metrics[-1].gradient_norm)
    assert reported == [None, float("inf")]


def test_the_log_has_beginning_evaluations_checkpoints_and_end(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    training = Training(tmp_path, hooks=[RunLogObserver(records.append)])
    training.run()
    messages = [record["message"] for record in records]
    assert messages[0] == "training.log_training_begins()"
    assert messages[-1] == "training.training_ended()"
    assert messages.count("training.log_evaluated()") == 3
    assert "training.log_checkpoint_saved()" in messages
    assert records[-1]["step"] == training.state.total_steps
    of = {record["message"].removeprefix("training.").rstrip("()"): record for record in records}
    assert of["log_training_begins"] | {"message": ""} == {
        **{"message": "", "step": 0, "epoch": 0, "total_steps": training.state.total_steps}
    }
    assert of["log_phase_begins"]["phase"] == training.state.phase.name
    assert of["log_evaluated"]["eval_loss"] == 1.0
    assert of["log_checkpoint_saved"]["checkpoint"] == str(training.state.checkpoint)
    assert (of["training_ended"]["loss"], of["training_ended"]["reason"]) == (
        training.state.loss,
        None,
    )
    assert of["training_ended"]["epoch"] == 3


class Stops(Observer):
    """Ends a training after its second step, by an error or for a reason."""

    def __init__(self, error: Exception | None) -> None:
        self.error_of_step = error

    def step_end(self, state: TrainingState) -> None:
        if state.step == 2 and self.error_of_step is not None:
            raise self.error_of_step
        if state.step == 2:
            state.stop("enough")


@pytest.mark.parametrize("error", [None, KeyError("planted")])
def test_the_log_has_the_reason_of_an_end(error: Exception | None) -> None:
    records: list[dict[str, Any]] = []
    training = Training(hooks=[RunLogObserver(records.append), Stops(error)])
    with pytest.raises(KeyError) if error else nullcontext():
        training.run()
    *_, before, last = records
    assert (last["step"], last["reason"]) == (2, None if error else "enough")
    if error:
        assert before["message"] == "training.error_ended_training()"
        assert before["error"] == "KeyError('planted')"


def hooks_of(monitor: dict[str, Any], precision: Precision, folder: Path, **probes: Any) -> Any:
    config = config_of(folder, monitor)
    return monitoring_hooks(config, folder, None, precision, lambda line: None, probes)


def test_the_log_is_written_to_before_it_is_closed_and_the_monitor_is_as_configured(
    tmp_path: Path,
) -> None:
    hooks = hooks_of({"interval": 7.0}, FP32, tmp_path, mine=lambda: 3.0)
    kinds = [type(hook) for hook in hooks]
    assert kinds.index(RunLogObserver) < kinds.index(MonitorObserver)
    monitor = hooks[kinds.index(MonitorObserver)].monitor
    assert monitor.interval_seconds == 7.0
    observer, log = hooks[kinds.index(MonitorObserver)], hooks[0].write.__self__
    assert (observer.start, observer.stop) == (log.start, log.stop)
    assert monitor.probes["mine"]() == 3.0
    assert monitor.probes.keys() >= {"cache_bytes", "checkpoint_age_seconds"}


@pytest.mark.parametrize(
    ("device_type", "given", "percent"),
    [("cpu", {}, 100.0), ("cpu", {"cpu_percent": 50.0}, 50.0), ("cuda", {}, None)],
)
def test_a_busy_processor_is_no_alert_where_it_trains(
    tmp_path: Path, device_type: str, given: dict[str, float], percent: float | None
) -> None:
    usual = AlertThresholds()
    limits = monitoring_setup._limits(AlertThresholds(**given), device_type)
    assert limits.cpu_percent == (usual.cpu_percent if percent is None else percent)
    assert limits.gradient_norm == usual.gradient_norm


def observed(**state: Any) -> tuple[MonitorObserver, TrainingMonitor, TrainingState]:
    monitor, training = quiet_monitor(), Training()
    return MonitorObserver(monitor, training.adapter, FP32), monitor, training.state


def test_a_record_of_the_monitor_has_what_the_loop_has_read() -> None:
    observer, monitor, state = observed()
    state.step, state.position.epoch, state.loss, state.batch = 5, 2, 0.25, (1, 2, 3)
    state.metrics = {"learning_rate": 0.5, "grad_norm": 2.0, "memory_bytes": 7.0}
    state.rewards = StepRewards(num_tied=4)
    observer.step_end(state)
    record = monitor.recent_metrics[-1]
    assert (record.epoch, record.step, record.loss, record.batch_size) == (2, 5, 0.25, 3)
    assert (record.learning_rate, record.gradient_norm, record.memory_bytes) == (0.5, 2.0, 7.0)
    assert record.num_tied_steps == 4
    assert record.tokens_per_second is None  # none was counted
    assert record.model_flops_utilization is None


def test_the_step_that_an_error_ended_is_reported_once() -> None:
    observer, monitor, state = observed()
    state.step, state.metrics = 5, {"learning_rate": 0.5}
    observer.step_end(state)
    observer.error(state)
    assert [record.step for record in monitor.recent_metrics] == [5]
    state.step, state.loss = 6, math.nan
    observer.error(state)
    assert [record.step for record in monitor.recent_metrics] == [5, 6]
    assert monitor.recent_metrics[-1].seconds_per_step is None  # no step has ended since


@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_a_forward_pass_is_measured_once_a_minute_and_not_where_it_would_compile(
    monkeypatch: pytest.MonkeyPatch, compile_mode: str | None
) -> None:
    observer, _, state = observed()
    assert observer.adapter is not None
    observer.adapter.training_config = observer.adapter.training_config.copy_with(
        compile_mode=compile_mode
    )
    now, sizes = [100.0], list[int]()
    loss = observer.adapter.compute_loss
    monkeypatch.setattr(monitoring_setup.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        observer.adapter,
        "compute_loss",
        lambda model, batch: (sizes.append(batch["num_examples"]), loss(model, batch))[1],
    )
    observer.eval_end(state)
    assert sizes == []  # there is no batch yet
    state.batch = [1, 2, 3]
    for seconds in (0.0, 59.0, 1.0):
        now[0] += seconds
        observer.eval_end(state)
    assert sizes == ([] if compile_mode else [1] * 4)  # two passes each, of one example
