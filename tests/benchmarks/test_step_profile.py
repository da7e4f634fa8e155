"""Operations are sorted by what they are, and by who calls them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.step_profile import KINDS, kind_of, page, quickstart_trainer
from tests.slow import slow


@dataclass
class Event:
    name: str
    cpu_parent: "Event | None" = None


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["aten::mm"], "products"),
        (["aten::mm", "LinearCrossEntropy"], "products"),
        (["aten::copy_"], "conversions and copies"),
        (["aten::copy_", "LinearCrossEntropy"], "loss, but for its products"),
        (["aten::_log_softmax"], "loss, but for its products"),
        (["aten::bmm", "ShortAttentionBackward"], "attention"),
        (["aten::copy_", "aten::to", "aten::scaled_dot_product_attention"], "attention"),
        (["aten::mul_", "Optimizer.step#AdamW.step"], "optimizer and clipping"),
        (["aten::rsqrt"], "norms and pointwise"),
        (["aten::embedding_dense_backward"], "embedding, concatenation, zeroing"),
    ],
)
def test_an_operation_has_a_kind(names: list[str], kind: str) -> None:
    event = None
    for name in reversed(names):
        event = Event(name, event)
    assert kind_of(event) == kind
    assert kind in KINDS


@slow
def test_the_quickstart_s_steps_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = page("the quickstart", "--quickstart", quickstart_trainer, 1, 1)
    assert "# Where the time of a step goes: the quickstart" in shown
    shares = {cells[1]: int(cells[3].rstrip("%")) for cells in rows_of(shown) if cells[1] in KINDS}
    assert set(shares) == set(KINDS)
    assert 95 <= sum(shares.values()) <= 105
    assert shares["products"] > 0


def rows_of(page: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    return [cells for cells in rows if len(cells) == 5]
