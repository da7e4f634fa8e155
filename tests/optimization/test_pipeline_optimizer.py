"""Settings are taken where they pay over the whole training, and only there."""

from collections.abc import Mapping
from typing import Any

import pytest

from infrastructure.optimization.pipeline_optimizer import Measured, PipelineOptimizer, Tried

PLAIN = Measured(1000.0, 100)


def optimizer(
    results: Mapping[tuple[Any, ...], Measured | BaseException], num_tokens: float = 1e6
) -> PipelineOptimizer:
    """Measures what is written down for the values of the changed settings."""

    def measure(settings: Mapping[str, Any]) -> Measured:
        found = results.get(tuple(settings.values()), PLAIN)
        if isinstance(found, BaseException):
            raise found
        return found

    return PipelineOptimizer(
        measure,
        budget_bytes=1000,
        num_tokens=num_tokens,
    )


def test_what_is_clearly_faster_is_taken_and_the_next_is_tried_with_it() -> None:
    found = optimizer({("bf16",): Measured(2000.0, 90), ("bf16", 8): Measured(2200.0, 90)})
    assert found.run({"precision": ["bf16"], "prefetch": [4, 8]}) == {
        "precision": "bf16",
        "prefetch": 8,
    }
    assert [tried.taken for tried in found.tried] == [True, True, False, True]


def test_a_small_difference_is_not_taken() -> None:
    assert optimizer({("bf16",): Measured(1020.0, 90)}).run({"precision": ["bf16"]}) == {}


@pytest.mark.parametrize(("num_tokens", "settings"), [(1e5, {}), (1e7, {"compile": "default"})])
def test_compiling_is_taken_where_it_pays_back(num_tokens: float, settings: dict[str, str]) -> None:
    """60 s for twice the speed: lost in a training of 100 s, gained in one of 10,000 s."""
    compiled = Measured(2000.0, 100, setup_seconds=60.0)
    assert optimizer({("default",): compiled}, num_tokens).run({"compile": ["default"]}) == settings


@pytest.mark.parametrize(
    ("result", "refusal"),
    [
        (ValueError("fp16 needs a GPU"), "fp16 needs a GPU"),
        (MemoryError(), "optimization.out_of_memory()"),
        (Measured(9000.0, 2000), "optimization.exceeds_available_memory()"),
    ],
)
def test_what_cannot_be_is_reported_and_passed_over(result: Any, refusal: str) -> None:
    reported: list[Tried] = []
    found = optimizer({("fp16",): result})
    found.report = reported.append
    assert found.run({"precision": ["fp16"]}) == {}
    assert reported[-1].refusal == refusal


def test_another_error_is_raised() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        optimizer({("fp16",): RuntimeError("broken")}).run({"precision": ["fp16"]})
