"""Out of memory and a failed GPU, wherever in a step they come."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.core.errors import DeviceFailedError, ProcessLostError
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints import checkpoint_manager, snapshot
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import SkippedBatch, TrainingState
from infrastructure.training.distributed.group import Group
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.forward.evaluation_loss import EvaluationLoss
from infrastructure.training.forward.gradient_accumulation import one_step
from infrastructure.training.loop import loop, loss_judge, optimizer_step
from infrastructure.training.model_adapters.base_adapter import LossOutput
from infrastructure.training.recovery import safe_point as boundary
from tests.slow import slow_but
from tests.training.toy_training import Training

ONE_PIECE: dict[str, Any] = {"dropout": 0.0, "batch_size": 6, "gradient_accumulation": 1}


class SmallerFrom(Extension):
    """The reference: micro-batches of `size` from a step on, without any error."""

    def __init__(self, step: int, size: int) -> None:
        self.step, self.size = step, size

    def step_start(self, state: TrainingState) -> None:
        if state.step == self.step:
            state.micro_batch_size = self.size


def fail_in_optimizer(training: Training, step: int, error: Exception) -> None:
    """The optimizer changes some weights, and then raises, once."""
    raised: list[bool] = []

    def torn(*args: Any) -> None:
        if training.state.step == step and not raised:
            raised.append(True)
            training.state.model.head.weight.data.fill_(7.0)
            raise error

    training.step.optimizer.register_step_pre_hook(torn)


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory: planted")


@pytest.mark.parametrize("step", slow_but([0, 5, 11], range(12)))
def test_out_of_memory_in_the_optimizer_goes_back(tmp_path: Path, step: int) -> None:
    """With dropout, bit for bit as if the micro-batch had been smaller from that checkpoint on."""
    training = Training(tmp_path, checkpoint_frequency=5, batch_size=4, gradient_accumulation=1)
    fail_in_optimizer(training, step, out_of_memory())
    training.run()
    smaller = SmallerFrom(step // 5 * 5, 2)
    reference = Training(hooks=[smaller], batch_size=4, gradient_accumulation=1).run()
    assert training.state.micro_batch_size == 2
    assert training.state.step == reference.state.step
    assert torch.equal(training.weights, reference.weights)
    (entry,) = training.state.recoveries
    assert (entry["kind"], entry["step"]) == ("out_of_memory", step + 1)
    back_to = f"training.rolled_back_torn_step(step={step // 5 * 5}, micro_batch_size=2)"
    assert entry["action"] == back_to


@pytest.mark.parametrize("settings", [{"recovery": {"out_of_memory": "stop"}}, {"batch_size": 1}])
def test_what_cannot_be_made_smaller_stops(tmp_path: Path, settings: dict[str, Any]) -> None:
    training = Training(tmp_path, **settings)
    fail_in_optimizer(training, 5, out_of_memory())
    with pytest.raises(torch.OutOfMemoryError):
        training.run()
    newest = load_checkpoint(training.checkpoints.newest())
    assert not (newest.tensors["model"]["head.weight"] == 7.0).any()


def test_where_nothing_was_saved_the_lack_of_memory_comes_with_its_place() -> None:
    training = Training()
    fail_in_optimizer(training, 5, out_of_memory())
    with pytest.raises(torch.OutOfMemoryError) as caught:
        training.run()
    assert "torn" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_out_of_memory_in_a_later_piece_counts_no_piece_twice(piece: int) -> None:
    """What the pieces before it gave is given up with it: all of the batch comes anew."""
    training = Training()
    loss, failed = training.adapter.compute_loss, []
    pieces: list[int] = []

    def compute(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        if training.state.step == 4 and not failed:
            pieces.append(batch["num_examples"])
            if len(pieces) == piece:
                failed.append(True)
                raise out_of_memory()
        return loss(model, batch)

    training.step.strategy.compute_loss = compute
    training.run()
    assert (failed, training.state.micro_batch_size) == ([True], 1)
    assert [entry["step"] for entry in training.state.recoveries] == [5]
    reference = Training(hooks=[SmallerFrom(4, 1)]).run()
    assert torch.equal(training.weights, reference.weights)


class FailsOnce(Observer):
    """Memory runs out once, when the gradients are there and unscaled."""

    def __init__(self) -> None:
        self.has_failed = False

    def after_backward(self, state: TrainingState) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise out_of_memory()


@pytest.mark.parametrize("where", ["after backward", "optimizer"])
def test_a_loss_scaler_begins_the_step_anew_that_was_broken_off(tmp_path: Path, where: str) -> None:
    """It refuses to unscale the gradients of one step twice."""
    hooks = [FailsOnce()] if where == "after backward" else []
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    training = Training(tmp_path, hooks=hooks, scaler=scaler, max_steps=4)
    if where == "optimizer":
        fail_in_optimizer(training, 2, out_of_memory())
    assert training.run().state.step == 4
    assert training.state.micro_batch_size == 1
    assert [entry["kind"] for entry in training.state.recoveries] == ["out_of_memory"]


def test_gradients_are_clipped_as_they_are_not_as_a_loss_scaler_has_made_them() -> None:
    """A power of two changes no bit of them."""
    settings: dict[str, Any] = {"max_steps": 3, "max_grad_norm": 1.0, "optimizer": "sgd"}
    plain = Training(**settings).run()
    scaled = Training(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), **settings).run()
    assert torch.equal(scaled.weights, plain.weights)


def test_no_gradient_is_held_while_a_checkpoint_is_gone_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what nothing uses any more is given back before the training goes on."""
    training = Training(tmp_path)
    freed: list[int] = []
    monkeypatch.setattr(loop, "free_memory", lambda device: freed.append(training.state.step))
    fail_in_optimizer(training, 5, out_of_memory())
    go_back, held = training.checkpointer.roll_back, []

    def noted(state: TrainingState) -> Path:
        held.extend(p.grad is not None for p in state.model.parameters())
        return go_back(state)

    training.checkpointer.roll_back = noted
    training.run()
    assert held
    assert not any(held)
    assert freed == [4]


class FailsBetweenSteps(Observer):
    """Runs out of memory when five steps are done and none is begun."""

    def step_end(self, state: TrainingState) -> None:
        if state.step == 5:
            raise out_of_memory()


def test_where_no_weight_is_torn_out_of_memory_is_no_reason_to_go_back(tmp_path: Path) -> None:
    training = Training(tmp_path, hooks=[FailsBetweenSteps()])
    with pytest.raises(torch.OutOfMemoryError):
        training.run()
    assert training.state.recoveries == []


def test_out_of_memory_is_an_error_where_the_policy_makes_it_one() -> None:
    training = Training(**ONE_PIECE, recovery={"out_of_memory": "stop"})
    training.adapter.fail_above = 3
    with pytest.raises(torch.OutOfMemoryError):
        training.run()


def test_the_size_that_is_tried_is_reported_to_whoever_remembers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And before it is tried, what the larger pieces held is given back."""
    freed: list[torch.device] = []
    monkeypatch.setattr(optimizer_step, "free_memory", freed.append)
    training = Training(**ONE_PIECE)
    training.adapter.fail_above = 2
    tried: list[int] = []
    training.step.remember_limit = tried.append
    training.run()
    assert tried == [3, 1]
    assert len(freed) == 2
    noted = [(e["kind"], e["step"], e["action"], e["message"]) for e in training.state.recoveries]
    assert noted == [
        (
            *("out_of_memory", 1),
            f"training.batch_retried_smaller(micro_batch_size={size})",
            "CUDA out of memory: planted",
        )
        for size in tried
    ]


def test_a_lack_of_memory_in_the_evaluation_halves_once_for_all_batches() -> None:
    training = Training(dropout=0.0)
    model, adapter = training.state.model, training.adapter
    whole = EvaluationLoss(model, adapter, Precision("fp32", "cpu"))
    batches = [list(range(9)), list(range(9, 17))]
    expected = whole.measure(batches)
    adapter.fail_above = 2
    reported: list[int] = []
    halved = EvaluationLoss(
        model, adapter, Precision("fp32", "cpu"), on_smaller=lambda size, why: reported.append(size)
    )
    assert halved.measure(batches) == pytest.approx(expected, abs=1e-6)
    assert reported == [4, 2]


class LostError(RuntimeError):
    """Somebody asked a GPU that is gone."""


def lose_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on whatever reads a tensor or a generator raises."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise LostError

    for name in ("__float__", "item", "tolist", "cpu", "numpy", "clone", "copy_", "to", "zero_"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for module, name in [
        (snapshot, "trainable_state"),
        (snapshot, "capture_random"),
        (optimizer_step, "capture_random"),
        (optimizer_step, "restore_random"),
        (boundary, "capture_random"),
        (boundary, "restore_random"),
    ]:
        monkeypatch.setattr(module, name, refuse)


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer", "evaluation"])
@pytest.mark.parametrize("in_background", [False, True])
def test_a_failed_gpu_is_never_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, in_background: bool
) -> None:
    """What was handed to the writer before is finished and named, with the way to go on."""
    if in_background:
        monkeypatch.setattr(checkpoint_manager, "BACKGROUND_BYTES", 0)
    training = Training(tmp_path / "run" / "checkpoints", checkpoint_frequency=3)

    def fail(*args: Any) -> Any:
        if training.state.step < 8:
            return None
        lose_the_device(monkeypatch)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")

    loss = training.adapter.compute_loss

    def compute(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        if where == "forward":
            fail()
        output = loss(model, batch)
        if where == "backward":
            output.loss_sum.register_hook(fail)
        return output

    training.step.strategy.compute_loss = compute
    if where == "optimizer":
        training.step.optimizer.register_step_pre_hook(fail)
    if where == "evaluation":
        training.loop.evaluate = lambda: fail() or {"eval_loss": 1.0}
    with pytest.raises(DeviceFailedError) as caught:
        training.run()
    monkeypatch.undo()
    newest = training.checkpoints.newest()
    assert step_of(newest) == 6
    text = str(caught.value)
    assert text.startswith("training.gpu_failed(step=9, cause=CUDA error: device-side assert")
    kept = f"training.gpu_failed_after_save(checkpoint={newest}, run={tmp_path / 'run'})"
    assert f"what_next={kept}" in text
    assert training.recorder.events[-2:] == ["error", "train_end"]
    again = Training(tmp_path / "run" / "checkpoints", checkpoint_frequency=3).resume(newest)
    assert torch.equal(again.weights, Training(checkpoint_frequency=3).run().weights)


def test_a_gpu_that_fails_before_anything_is_saved_is_named() -> None:
    training = Training()

    def fail(*args: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    training.step.strategy.compute_loss = fail
    with pytest.raises(DeviceFailedError, match=r"training\.gpu_failed.*step=1"):
        training.run()


def test_the_notes_are_json(tmp_path: Path) -> None:
    training = Training(tmp_path, **ONE_PIECE)
    training.adapter.fail_above, training.adapter.poison_example = 3, 4
    training.run()
    assert json.loads(json.dumps(training.state.recoveries)) == training.state.recoveries
    saved = load_checkpoint(training.checkpoints.newest())
    assert saved.values["recoveries"] == training.state.recoveries


class Metrics(Observer):
    """What each step's end tells."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []
        self.norms: list[Any] = []

    def step_end(self, state: TrainingState) -> None:
        self.seen.append(dict(state.metrics))
        self.norms.append(state.grad_norm)


def test_of_a_step_that_was_passed_over_nothing_is_reported() -> None:
    metrics = Metrics()
    training = Training(hooks=[metrics], max_steps=3)
    training.step.losses.watch.until_step = 3  # nor judged, where each step is
    size = training.loop.global_batch_size
    training.state.skipped = [SkippedBatch(2, 0, size, size, "not_finite", ("a:1",), True)]
    training.run()
    assert [sorted(one)[:2] for one in metrics.seen] == [
        ["grad_norm", "learning_rate"],
        [],
        ["grad_norm", "learning_rate"],
    ]
    assert [norm is None for norm in metrics.norms] == [False, True, False]


class OfFour(Group):
    """One of four ranks, without the others."""

    rank, size = 2, 4


@pytest.mark.parametrize(
    ("error", "policy", "limits"),
    [
        (out_of_memory(), "smaller", [1]),  # its share of six examples is two
        (out_of_memory(), "stop", []),
        (OSError("planted"), "smaller", []),
    ],
)
def test_a_rank_that_lacks_memory_remembers_half_of_its_share_and_ends(
    error: Exception, policy: str, limits: list[int]
) -> None:
    training = Training(recovery={"out_of_memory": policy})
    step, state = training.step, training.state
    step.group, state.batch, state.micro_batch_size, state.step = OfFour(), range(6), 8, 4
    remembered: list[int] = []
    step.remember_limit = remembered.append
    step.mark_safe(state)
    ended = pytest.raises(ProcessLostError if limits else type(error))
    with ended as caught, step._ended_by_errors(state):
        raise error
    assert remembered == limits
    assert step.safe_point is None
    if limits:
        assert str(caught.value) == "training.rank_out_of_memory(rank=2, step=5)"
        state.batch = range(1)
        with pytest.raises(ProcessLostError), step._ended_by_errors(state):
            raise error
        assert remembered == [1, 1]


def test_what_is_known_of_the_losses_comes_back_with_a_checkpoint() -> None:
    before, after = Training().step, Training().step
    for loss in (1.0, 2.0, 3.0):
        before.losses.watch.observe(loss)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.losses.watch == before.losses.watch
    assert after.losses.watch.recent == [1.0, 2.0, 3.0]


def test_the_phase_whose_form_the_model_has_comes_back_with_a_checkpoint() -> None:
    before, after = Training().step, Training()
    before.strategy.take_form(after.state.model, before.optimizer, 3)
    saved = json.loads(json.dumps(before.state_dict()))
    after.step.take_form(after.state.model, saved)
    assert after.step.strategy.entered == 3
    del saved["entered"]  # as before there were phases with forms
    after.step.take_form(after.state.model, saved)
    assert after.step.strategy.entered == -1


def test_on_a_gpu_its_memory_is_reported_and_else_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    assert loss_judge.memory_in_use_bytes(torch.device("cuda")) == 7
    assert loss_judge.memory_in_use_bytes(torch.device("cpu")) > 10**6


def test_a_batch_with_one_supervised_item_is_divided_by_one() -> None:
    training = Training(dropout=0.0)
    model, adapter = training.state.model, training.adapter
    output = adapter.compute_loss(model, adapter.prepare_batch([0]))
    assert output.num_items == 1
    output.loss_sum.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    training.loop.single_step(training.state, [0])
    assert training.state.metrics["grad_norm"] == pytest.approx(float(gradient.norm()))


def test_a_batch_without_supervised_items_is_a_step_of_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(dropout=0.0)
    adapter, step, model = training.adapter, training.step, training.state.model
    loss = adapter.compute_loss

    def of_nothing(model: torch.nn.Module, batch: dict[str, Any]) -> LossOutput:
        return LossOutput(loss(model, batch).loss_sum * 0.0, 0)

    step.strategy.compute_loss = of_nothing
    monkeypatch.setattr(adapter, "count_items", lambda examples: 0)
    assert training.loop.single_step(training.state, [1, 2]) == 0.0
    assert training.state.metrics["grad_norm"] == 0.0
    assert training.weights.isfinite().all()
    one_step(model, adapter, step.strategy, step.optimizer, [1])
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_training_begins_alone_and_with_nothing_done() -> None:
    state = TrainingState(torch.nn.Linear(1, 1))
    assert (state.num_processes, state.micro_batch_size) == (1, 1)
    assert (state.step, state.total_steps, state.evaluated_step) == (0, 0, -1)
    assert (state.num_examples, state.num_tokens, state.data_wait_seconds) == (0, 0, 0.0)
    assert not any((state.step_is_ending, state.must_save, state.is_interrupted))


def test_what_a_broken_off_step_has_left_moves_nothing() -> None:
    """Also of a parameter that this batch does not reach: an optimizer passes over those alone that
    have no gradient at all."""
    training = Training()
    unused = torch.nn.Parameter(torch.ones(2))
    training.step.optimizer.param_groups[0]["params"].append(unused)
    unused.grad = torch.ones(2)
    training.run()
    assert unused.tolist() == [1.0, 1.0]
