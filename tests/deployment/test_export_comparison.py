"""How far an export is from what was trained."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.deployment.export_comparison import Comparer, Reference, distance
from infrastructure.evaluation.plain_reading import OtherAnswersError


def test_a_distance_is_relative_and_knows_no_constant() -> None:
    expected = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    assert distance(expected + 3, expected) < 1e-6
    assert distance(expected * 1.1, expected) == pytest.approx(0.1, abs=1e-5)


def test_what_is_too_far_or_written_otherwise_is_refused() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    prompts = [torch.arange(4).unsqueeze(0)]
    compare = Comparer(Reference(prompts, [logits], 1e-3), None)
    assert compare("the same", lambda ids: logits.clone(), prompts).same_choice == 1.0
    wider = torch.nn.functional.pad(logits, (0, 3), value=-1e9)
    near = compare("near", lambda ids: logits + 1e-7 * logits.flip(0))
    shown = re.search(r"distance=([^,]+),", near.words())
    assert shown is not None
    assert 0 < near.facts()["logits_distance"] == float(f"{float(shown[1]):.2g}")  # type: ignore[operator]
    assert compare("padded", lambda ids: wider).distance < 1e-6
    with pytest.raises(CheckpointError, match=r"deployment\.export_differs_from_model"):
        compare("another", lambda ids: logits.flip(0))
    with pytest.raises(CheckpointError, match=r"deployment\.export_differs_from_model"):
        compare("broken", lambda ids: logits * torch.nan)
    with pytest.raises(CheckpointError, match=r"deployment\.export_prompts_differ"):
        compare("other prompts", lambda ids: logits, [prompts[0] + 1])


@pytest.mark.parametrize(
    ("bits", "code"),
    [
        (4, "deployment.export_in_4_bits_answers_differ"),
        (8, "deployment.export_in_8_bits_answers_differ"),
        (None, "evaluation.saved_model_differs"),
    ],
)
def test_other_answers_are_put_down_to_rounding_and_name_the_export(
    bits: int | None, code: str
) -> None:
    def compare(folder: Path, tolerance: float) -> int:
        raise OtherAnswersError(folder, "for '1 + 1' it generates '3'")

    expected: Any = SimpleNamespace(compare=compare)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    reference = Reference([torch.arange(4).unsqueeze(0)], [logits], 1e-3, expected)
    comparer = Comparer(reference, bits, Path("exported/step-3"))
    about = r"\(folder=exported/step-3, difference=for '1 \+ 1' it generates '3'"
    with pytest.raises(CheckpointError, match=f"^{re.escape(code)}{about}"):
        comparer("transformers", lambda ids: logits, folder=Path(".part-of-it"))
