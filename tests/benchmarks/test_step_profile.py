"""Operations are sorted by what they are, and by who calls them."""

from dataclasses import dataclass

import pytest

from benchmarks.step_profile import KINDS, kind_of


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
