"""How the end of a resumed run is compared with that of an uninterrupted one."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.testing import resume_checks as module
from infrastructure.testing.results import CheckResult
from infrastructure.testing.resume_checks import check_resume, check_saved_model

VALUES = {"step": 4, "loss": 2.5}
WEIGHTS = {"model/w": torch.tensor([3.0, 4.0]), "random/cpu": torch.tensor([1.0])}
MOVED = {**WEIGHTS, "model/w": torch.tensor([3.0, 4.5])}
HARDLY = {**WEIGHTS, "model/w": torch.tensor([3.0, 4.0039])}
EXACT, NEAR = "testing.bit_for_bit()", "to within 0.00098"


@pytest.mark.parametrize(
    ("tensors", "values", "differing", "how", "distance"),
    [
        # (differing, first) on a CPU and on a GPU; None: they are alike
        (WEIGHTS, VALUES, (None, None), (EXACT, EXACT), 0.0),
        (WEIGHTS, {**VALUES, "loss": 2.6}, ((1, "loss"), None), ("", EXACT), 0.0),
        (WEIGHTS, {**VALUES, "step": 5}, ((1, "step"), (1, "step")), ("", ""), 0.0),
        (MOVED, {**VALUES, "loss": 3.0}, ((2, "model/w"), (2, "model/w")), ("", ""), 0.125),
        (HARDLY, VALUES, ((1, "model/w"), None), ("", NEAR), 0.000975),
        (
            {"random/cpu": torch.tensor([1.0])},
            VALUES,
            ((1, "model/w"),) * 2,
            ("", ""),
            float("inf"),
        ),
    ],
)
def test_ends_are_compared_whole_and_on_a_gpu_to_within_its_noise(
    tensors: dict[str, torch.Tensor],
    values: dict[str, object],
    differing: tuple[tuple[int, str] | None, ...],
    how: tuple[str, str],
    distance: float,
) -> None:
    for first, precision, is_exact in zip(differing, how, (True, False), strict=True):
        found = module._compared((tensors, values), (WEIGHTS, VALUES), is_exact=is_exact)
        text = f"testing.resumed_run_matches(step=2, precision={precision})"
        remedy = ""
        if first is not None:
            about = f"steps_before=2, steps_after=2, num_differing={first[0]}, name={first[1]}"
            text = f"testing.resumed_run_differs({about})"
            remedy = "testing.checkpoint_incomplete()"
        status = "fail" if first else "pass"
        numbers = {"num_compared": 2.0, "relative_difference": pytest.approx(distance, rel=0.01)}
        assert found == CheckResult(
            "save and resume",
            status,
            text,
            remedy,
            "integration",
            numbers,  # type: ignore[arg-type]
        )


def stand_in(num_examples: int, make_trainer: Any = object) -> Any:
    data, device = SimpleNamespace(num_examples=num_examples), torch.device("cpu")
    return SimpleNamespace(data=data, make_trainer=make_trainer, device=device)


def test_what_cannot_be_tried_is_skipped_and_a_damaged_checkpoint_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def refuse(trainer: object, folder: Path, batch_size: int) -> None:
        sizes.append(batch_size)
        raise CheckpointError("it lacks w")

    monkeypatch.setattr(module, "preserve_subject", nullcontext)
    monkeypatch.setattr(module, "_at_one_go", refuse)
    subjects = [stand_in(9, make_trainer=None), *map(stand_in, (3, 4, 7, 8, 100))]
    broken = ("fail", "testing.checkpoint_not_resumable(error=it lacks w)")
    found = [check_resume(subject) for subject in subjects]
    assert [(one.status, one.text) for one in found] == [
        ("skipped", "testing.no_second_trainer()"),
        ("skipped", "testing.too_few_examples(num_steps=4)"),
        *[broken] * 4,
    ]
    assert {(one.name, one.group) for one in found} == {("save and resume", "integration")}
    assert sizes == [1, 1, 2, 2]


def test_a_model_that_cannot_be_saved_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(folder: Path) -> None:
        raise NotImplementedError("it has no file format")

    monkeypatch.setattr(module, "undone", nullcontext)
    monkeypatch.setattr(module, "take_steps", lambda *_: None)
    subject: Any = SimpleNamespace(adapter=SimpleNamespace(save=save))
    found = check_saved_model(subject)
    expected = ("saved model", "skipped", "it has no file format", "integration")
    assert (found.name, found.status, found.text, found.group) == expected


def test_a_model_without_text_is_compared_by_its_weights() -> None:
    subject: Any = SimpleNamespace(reads_text=False, model=torch.nn.Linear(2, 2))
    other = torch.nn.Linear(2, 2)
    other.load_state_dict(subject.model.state_dict())
    assert module._difference(subject, other) == 0.0
    with torch.no_grad():
        other.bias.copy_(2 * subject.model.bias)
    assert module._difference(subject, other) == pytest.approx(1.0)
    assert module._difference(subject, torch.nn.Linear(2, 2, bias=False)) == float("inf")
