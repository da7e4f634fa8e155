"""Checks that a resumed run equals an uninterrupted one, and that its model is saved completely.

Both checks work in a temporary folder, on small batches; existing files are not touched.
"""

import itertools
import tempfile
from contextlib import closing
from pathlib import Path

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import call_model, logits_of, relative_difference
from infrastructure.models.model_manager import load_saved
from infrastructure.models.saved_model import rounded_beside
from infrastructure.models.trainable_state import trainable_state
from infrastructure.optimization.device_errors import free_memory
from infrastructure.testing.parameter_checks import VISIBLE_LEARNING_RATE, take_steps
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import (
    Subject,
    disable_randomness,
    kept_values,
    preserve_subject,
    stride_for,
    undone,
)
from infrastructure.training.checkpoints.snapshot import take_snapshot
from infrastructure.training.enhanced_trainer import EnhancedTrainer

RESUME, SAVED = "save and resume", "saved model"
STEPS_BEFORE, STEPS_AFTER = 2, 2
MAX_BATCH = 2
GPU_NOISE = 1e-3  # many CUDA kernels add in a different order each time
COMPARED_VALUES = ("step", "position", "num_tokens", "loss", "scheduler", "scaler")

End = tuple[dict[str, torch.Tensor], dict[str, object]]


def check_resume(subject: Subject) -> CheckResult:
    """Check that two steps, a checkpoint, a new trainer and two more steps equal four steps in a
    row.

    The new trainer starts from nothing but the checkpoint, as after a kill. Weights, optimizer,
    random state, schedule and loss are compared.
    """
    if subject.make_trainer is None:
        text = phrase("testing.no_second_trainer")
        return CheckResult(RESUME, "skipped", text, group="integration")
    num_steps = STEPS_BEFORE + STEPS_AFTER
    batch_size = min(MAX_BATCH, subject.data.num_examples // num_steps)
    if batch_size < 1:
        text = phrase("testing.too_few_examples", num_steps=num_steps)
        return CheckResult(RESUME, "skipped", text, group="integration")
    with preserve_subject(subject), tempfile.TemporaryDirectory() as folder:
        try:
            checkpoint, expected = _at_one_go(subject.make_trainer(), Path(folder), batch_size)
            free_memory(subject.device)
            resumed = _resumed_end(subject.make_trainer(), checkpoint, batch_size)
        except CheckpointError as error:
            text = phrase("testing.checkpoint_not_resumable", error=error)
            return CheckResult(RESUME, "fail", text, group="integration")
    return _compared(resumed, expected, is_exact=subject.device.type == "cpu")


def _at_one_go(trainer: EnhancedTrainer, folder: Path, batch_size: int) -> tuple[Path, End]:
    trainer.save_checkpoints_to(folder / "checkpoints")
    session = trainer.prepare()
    _train(trainer, STEPS_BEFORE, batch_size)
    checkpoint = session.save_checkpoint()
    _train(trainer, STEPS_AFTER, batch_size)
    return checkpoint, _end_of(trainer)


def _resumed_end(trainer: EnhancedTrainer, checkpoint: Path, batch_size: int) -> End:
    trainer.prepare()
    trainer.restore(checkpoint)
    _train(trainer, STEPS_AFTER, batch_size)
    return _end_of(trainer)


def _train(trainer: EnhancedTrainer, num_steps: int, batch_size: int) -> None:
    trainer.initialize_model().train()
    position, data = trainer.state.position, trainer.initialize_data()
    with closing(data.train_batches(position.epoch, position.example, batch_size)) as batches:
        for examples in itertools.islice(batches, num_steps):
            trainer.train_step(examples)


def _end_of(trainer: EnhancedTrainer) -> End:
    session = trainer.prepare()
    snapshot = take_snapshot(session.state, session.loop.optimizer_step)
    tensors: dict[str, torch.Tensor] = {}
    for group, members in snapshot.tensors.items():
        whole = group == "random"
        stride = 1 if whole else stride_for(tensor.numel() for tensor in members.values())
        tensors |= {f"{group}/{n}": kept_values(tensor, stride) for n, tensor in members.items()}
    return tensors, {name: snapshot.values[name] for name in COMPARED_VALUES}


def _compared(resumed: End, expected: End, *, is_exact: bool) -> CheckResult:
    tensors, values = expected
    changed = [n for n in tensors if not _same(resumed[0].get(n), tensors[n])]
    farthest = max((_distance(resumed[0].get(n), tensors[n]) for n in changed), default=0.0)
    others = [name for name in values if resumed[1][name] != values[name]]
    if not is_exact and farthest <= GPU_NOISE:
        changed, others = [], [name for name in others if name != "loss"]
    numbers = {"num_compared": float(len(tensors)), "relative_difference": farthest}
    if differing := [*changed, *others]:
        text = phrase(
            "testing.resumed_run_differs",
            steps_before=STEPS_BEFORE,
            steps_after=STEPS_AFTER,
            num_differing=len(differing),
            name=differing[0],
        )
        remedy = phrase("testing.checkpoint_incomplete")
        return CheckResult(RESUME, "fail", text, remedy, "integration", numbers)
    how = f"to within {farthest:.2g}" if farthest else phrase("testing.bit_for_bit")
    text = phrase("testing.resumed_run_matches", step=STEPS_BEFORE, precision=how)
    return CheckResult(RESUME, "pass", text, "", "integration", numbers)


def _distance(actual: torch.Tensor | None, expected: torch.Tensor) -> float:
    return float("inf") if actual is None else relative_difference(actual, expected)


def _same(actual: torch.Tensor | None, expected: torch.Tensor) -> bool:
    return actual is not None and torch.equal(actual, expected)


def check_saved_model(subject: Subject) -> CheckResult:
    """Check that the model that the run will save, once loaded again, equals the trained one."""
    with undone(subject), tempfile.TemporaryDirectory() as folder:
        take_steps(subject, 1, VISIBLE_LEARNING_RATE)  # else it might equal its source
        try:
            subject.adapter.save(Path(folder) / "final")
        except NotImplementedError as error:
            return CheckResult(SAVED, "skipped", str(error), group="integration")
        config = subject.trainer.model_config
        saved = rounded_beside(Path(folder)) or Path(folder) / "final"
        loaded = load_saved(saved, device=subject.device, model_config=config)
        difference = _difference(subject, loaded.model)
    numbers = {"relative_difference": difference}
    if difference > subject.tolerance:
        text = phrase("testing.saved_model_differs", difference=difference)
        remedy = phrase("testing.adapter_save_incomplete")
        return CheckResult(SAVED, "fail", text, remedy, "integration", numbers)
    text = phrase("testing.saved_model_matches")
    return CheckResult(SAVED, "pass", text, "", "integration", numbers)


def _difference(subject: Subject, loaded: torch.nn.Module) -> float:
    if not subject.reads_text:
        actual, expected = trainable_state(loaded), trainable_state(subject.model)
        if actual.keys() != expected.keys():
            return float("inf")
        return max(relative_difference(actual[name], expected[name]) for name in expected)
    disable_randomness(subject)
    example = max(subject.sample, key=lambda one: len(one.input_ids))
    ids = torch.as_tensor(example.input_ids, device=subject.device).long()[None]
    with torch.no_grad():
        again = logits_of(call_model(loaded, {"input_ids": ids}))
        trained = logits_of(call_model(subject.model, {"input_ids": ids}))
    return relative_difference(again, trained)
