"""Whatever goes wrong, and wherever: the steps done are saved, and going on gives the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.core.errors import TrainingDivergedError
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints import checkpoint_manager
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Extension, Observer
from infrastructure.training.metrics.metrics_logger import MetricsLogger
from infrastructure.training.metrics.sinks import make_sinks
from infrastructure.training.observers.early_stopping import EarlyStopping
from infrastructure.training.observers.run_observers import MetricsObserver
from tests.slow import slow_but
from tests.training.toy import ToySource
from tests.training.toy_training import Training

SETTINGS: dict[str, Any] = {"validation_frequency": 2, "log_frequency": 3}
# Events in which a step is not yet begun or already done; four steps make an epoch.
BETWEEN_STEPS = [
    *((event, 4) for event in ("step_start", "step_end", "eval_end", "epoch_start", "epoch_end")),
    *((event, 6) for event in ("step_start", "after_loss", "step_end", "eval_end")),
]


class Counter(Extension):
    """Remembers how often each event came, and draws from the random state that training uses."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(["step_start", "step_end", "eval_end", "epoch_end"], 0)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.counts = dict(saved["counts"])


def _count(event: str) -> Any:
    def method(self: Counter, state: TrainingState) -> None:
        self.counts[event] += 1
        torch.rand(1)

    return method


for _event in ("step_start", "step_end", "eval_end", "epoch_end"):
    setattr(Counter, _event, _count(_event))


class FailsOnce(Observer):
    """Raises in one event of one step."""

    def __init__(self, event: str, step: int, error: BaseException) -> None:
        self.step, self.raised = step, error
        self.event = event
        setattr(self, event, self._fail)

    @property
    def name(self) -> str:
        return f"fails in {self.event}"

    def _fail(self, state: TrainingState) -> None:
        if state.step == self.step:
            raise self.raised


def with_metrics(directory: Path, *hooks: Any, **settings: Any) -> Training:
    observer = MetricsObserver(MetricsLogger(make_sinks(["jsonl"], directory)))
    hooks = (Counter(), observer, *hooks)
    return Training(directory / "checkpoints", hooks=hooks, **{**SETTINGS, **settings})


def lasting(directory: Path) -> list[dict[str, Any]]:
    changing = {"seconds", "tokens_per_second", "memory_bytes"}
    records = read_metrics(directory / "metrics.jsonl")
    return [{k: v for k, v in record.items() if k not in changing} for record in records]


def counts(training: Training) -> dict[str, int]:
    return training.loop.hooks.hooks[0].counts  # type: ignore[attr-defined]


GoesOn = Callable[[Path, Training], None]


@pytest.fixture(scope="module")
def goes_on_as_if_nothing_had_been(tmp_path_factory: pytest.TempPathFactory) -> GoesOn:
    """Compare resumed runs with one uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole")
    whole = with_metrics(directory).run()

    def check(tmp_path: Path, broken: Training) -> None:
        again = with_metrics(tmp_path / "broken").resume(broken.checkpoints.newest())
        assert torch.equal(again.weights, whole.weights)
        assert counts(again) == counts(whole)
        assert lasting(tmp_path / "broken") == lasting(directory)

    return check


ERRORS = [OSError("planted"), KeyboardInterrupt()]
# Each event with one of the two errors in turn; the others are slow tests.
IN_TURN = [(ERRORS[n % 2], *place) for n, place in enumerate(BETWEEN_STEPS)]


@pytest.mark.parametrize(
    ("error", "event", "step"),
    slow_but(IN_TURN, [(error, *place) for error in ERRORS for place in BETWEEN_STEPS]),
)
def test_an_error_in_a_hook(
    tmp_path: Path,
    event: str,
    step: int,
    error: BaseException,
    goes_on_as_if_nothing_had_been: GoesOn,
) -> None:
    broken = with_metrics(tmp_path / "broken", FailsOnce(event, step, error))
    with pytest.raises(type(error)):
        broken.run()
    assert load_checkpoint(broken.checkpoints.newest()).values["step"] == step
    goes_on_as_if_nothing_had_been(tmp_path, broken)


@pytest.mark.parametrize("step", [0, 1])
def test_what_was_trained_is_rescued_and_no_beginning_twice(tmp_path: Path, step: int) -> None:
    broken = Training(tmp_path, hooks=[FailsOnce("step_start", step, OSError("planted"))])
    with pytest.raises(OSError, match="planted"):
        broken.run()
    assert [step_of(version) for version in broken.checkpoints.checkpoints()] == [0, 1][: step + 1]


def test_where_nothing_is_saved_nothing_is_reported_of_saving() -> None:
    error = OSError("planted")
    with pytest.raises(OSError, match="planted"):
        Training(hooks=[FailsOnce("step_start", 3, error)]).run()
    assert not getattr(error, "__notes__", [])


def test_an_error_in_the_evaluation(tmp_path: Path, goes_on_as_if_nothing_had_been: GoesOn) -> None:
    broken = with_metrics(tmp_path / "broken")

    def evaluate() -> dict[str, float]:
        if broken.state.step == 4:
            raise OSError("planted")
        return {"eval_loss": 1.0}

    broken.loop.evaluate = evaluate
    with pytest.raises(OSError, match="planted"):
        broken.run()
    goes_on_as_if_nothing_had_been(tmp_path, broken)


@pytest.mark.parametrize("event", ["after_loss", "step_end"])
def test_saving_in_the_background_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    goes_on_as_if_nothing_had_been: GoesOn,
) -> None:
    monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", 0)
    saved: list[int] = []

    class Saved(Observer):
        def checkpoint_saved(self, state: TrainingState) -> None:
            saved.append(step_of(state.checkpoint))

    broken = with_metrics(
        tmp_path / "broken",
        Saved(),
        FailsOnce(event, 6, OSError("planted")),
    )
    with pytest.raises(OSError, match="planted"):
        broken.run()
    assert saved == [0, 4, 6]
    goes_on_as_if_nothing_had_been(tmp_path, broken)


def test_an_error_in_the_data(tmp_path: Path, goes_on_as_if_nothing_had_been: GoesOn) -> None:
    broken = with_metrics(tmp_path / "broken")
    batches = broken.source.train_batches

    def fail_at(epoch: int, start: int, size: int) -> Any:
        for number, batch in enumerate(batches(epoch, start, size)):
            if (epoch, number) == (1, 2):
                raise OSError("planted")
            yield batch

    broken.source.train_batches = fail_at  # type: ignore[method-assign]
    with pytest.raises(OSError, match="planted"):
        broken.run()
    assert load_checkpoint(broken.checkpoints.newest()).values["step"] == 6
    goes_on_as_if_nothing_had_been(tmp_path, broken)


def test_out_of_memory_draws_the_same_random_numbers_again(tmp_path: Path) -> None:
    """Also where a hook has drawn some before the step began."""
    settings = {"gradient_accumulation": 1, "batch_size": 6, "dropout": 0.0}
    usual = with_metrics(tmp_path / "usual", **settings).run()
    tight = with_metrics(tmp_path / "tight", **settings)
    tight.adapter.fail_above = 3
    tight.run()
    assert torch.allclose(tight.weights, usual.weights, rtol=0, atol=1e-6)
    first, second = (load_checkpoint(t.checkpoints.newest()).tensors for t in (usual, tight))
    assert torch.equal(first["random"]["torch"], second["random"]["torch"])


def test_in_the_same_process_no_gradient_is_left_over() -> None:
    whole = Training().run()
    broken = Training(hooks=[FailsOnce("after_loss", 3, KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    broken.loop.hooks.hooks.pop(0)
    broken.state.error = None
    assert torch.equal(broken.run().weights, whole.weights)


class Stops(Observer):
    def step_end(self, state: TrainingState) -> None:
        if state.step == 2:
            state.stop("enough")


def test_a_state_that_is_not_finite_is_never_saved_as_a_good_one(tmp_path: Path) -> None:
    """Also when nobody had asked for the numbers of that step yet."""
    stop = {"not_finite": "stop"}
    training = Training(tmp_path, hooks=[Stops()], log_frequency=100, recovery=stop)
    (second_step,) = list(ToySource().train_batches(0, 6, 20))[:1]
    training.adapter.poison_example = second_step[0]
    with pytest.raises(
        TrainingDivergedError, match=r"step 2: training\.bad_loss_numbers\(loss=NaN"
    ):
        training.run()
    first, evidence = training.checkpoints.checkpoints()
    assert (step_of(first), step_of(evidence)) == (0, 2)
    assert not training.checkpoints.is_healthy(evidence)
    assert training.checkpoints.newest() == first


def test_after_a_gradient_that_was_no_number_nothing_is_rescued(tmp_path: Path) -> None:
    """Its loss was one still, and nobody had asked for the numbers of that step yet."""
    fails = FailsOnce("step_end", 3, OSError("planted"))
    training = Training(tmp_path, hooks=[fails], log_frequency=100)
    training.state.model.head.weight.register_hook(
        lambda gradient: gradient * torch.inf if training.state.step == 2 else gradient
    )
    with pytest.raises(OSError, match="planted"):
        training.run()
    (first,) = training.checkpoints.checkpoints()
    assert step_of(first) == 0


def test_after_an_error_no_gradient_is_held(tmp_path: Path) -> None:
    """The memory is for what is saved."""
    training = Training(tmp_path, hooks=[FailsOnce("after_backward", 3, OSError("planted"))])
    held: list[bool] = []
    save = training.checkpointer.begin

    def saved(state: TrainingState, kind: str) -> None:
        held.extend(p.grad is not None for p in state.model.parameters() if kind == "emergency")
        save(state, kind)

    training.checkpointer.begin = saved
    with pytest.raises(OSError, match="planted"):
        training.run()
    assert held
    assert not any(held)


def test_the_best_evaluation_is_remembered() -> None:
    training = Training(validation_frequency=1)
    losses = iter([3.0, float("nan"), 2.0, *[5.0] * 20])
    training.loop.evaluate = lambda: {"eval_loss": next(losses)}
    assert training.run().state.best_evaluation_loss == 2.0


def stopping(directory: Path, *hooks: Any) -> Training:
    training = Training(
        directory,
        hooks=[EarlyStopping(2), *hooks],
        validation_frequency=1,
        checkpoint_frequency=1,
    )
    losses = [9.0, 8.0, 7.0, 8.0, 9.0, 10.0, *[1.0] * 20]
    training.loop.evaluate = lambda: {"eval_loss": losses[training.state.step - 1]}
    return training


def test_who_stopped_early_stays_stopped(tmp_path: Path) -> None:
    """A run killed between the decision and its end does not train on."""
    whole = stopping(tmp_path).run()
    assert whole.state.step == 5
    again = stopping(tmp_path / "again").resume(whole.checkpoints.newest())
    assert again.state.step == 5
    assert again.state.stop_reason is not None
    assert torch.equal(again.weights, whole.weights)


@pytest.mark.parametrize("event", [Event.ERROR, Event.TRAIN_END])
def test_every_hook_hears_of_the_end(event: Event) -> None:
    failing = FailsOnce(event, 4, ValueError("in the hook"))
    training = Training(hooks=[failing, FailsOnce("step_end", 4, OSError("planted"))])
    with pytest.raises(OSError, match="planted") as caught:
        training.run()
    assert training.recorder.events[-2:] == ["error", "train_end"]
    assert any("in the hook" in note for note in caught.value.__notes__)


def test_a_hook_that_fails_at_the_end_is_heard_of() -> None:
    training = Training(hooks=[FailsOnce(Event.TRAIN_END, 12, ValueError("in the hook"))])
    with pytest.raises(ValueError, match="in the hook"):
        training.run()
    assert training.recorder.events[-1] == "train_end"
