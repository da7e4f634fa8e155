"""Settings are taken where they pay over the whole training, and only there."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.core.errors import InputError
from infrastructure.optimization import pipeline_optimizer as module
from infrastructure.optimization.pipeline_optimizer import (
    Measured,
    PipelineOptimizer,
    Tried,
    _not_given,
)

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
    first, second = Measured(2000.0, 90), Measured(2200.0, 90)
    assert found.tried == [
        Tried("", None, PLAIN, "", True, None, 1e6),
        Tried("precision", "bf16", first, "", True, PLAIN, 1e6),
        Tried("prefetch", 4, PLAIN, "", False, first, 1e6),
        Tried("prefetch", 8, second, "", True, first, 1e6),
    ]


@pytest.mark.parametrize(("speed", "is_taken"), [(1029.0, False), (1031.0, True)])
def test_a_small_difference_is_not_taken(speed: float, is_taken: bool) -> None:
    found = optimizer({("bf16",): Measured(speed, 1000)}).run({"precision": ["bf16"]})
    assert found == ({"precision": "bf16"} if is_taken else {})


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
        (Measured(9000.0, 1001), "optimization.exceeds_available_memory()"),
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


def test_a_measure_has_to_be_given() -> None:
    with pytest.raises(InputError, match=r"^optimization\.pipeline_measure_not_given\(\)$"):
        _not_given({})


class Data:
    """Reads fastest with one prefetched batch; its clock is the test's."""

    num_examples = 100

    def __init__(self, prefetch_factor: int) -> None:
        self.config = SimpleNamespace(prefetch_factor=prefetch_factor)
        self.now, self.tried = 0.0, list[int]()

    def train_batches(self, *position: int) -> Iterator[list[int]]:
        assert position == (0, 0, 32)
        self.tried.append(self.config.prefetch_factor)
        for _ in range(40):
            self.now += 0.01 * self.config.prefetch_factor
            yield [0] * 32


@pytest.mark.parametrize(("before", "chosen"), [(2, 1), (1, None)])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_the_fastest_prefetch_factor_is_used(
    before: int, chosen: int | None, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Data(before)
    clock = SimpleNamespace(perf_counter=lambda: data.now)
    monkeypatch.setattr(module, "time", clock)
    reported: list[Tried] = []
    search = PipelineOptimizer(report=reported.append)
    found = search.optimize_pipeline(SimpleNamespace(data=data) if is_wrapped else data)
    assert found == search.settings == ({} if chosen is None else {"data.prefetch_factor": chosen})
    assert data.config.prefetch_factor == (chosen or before)
    assert data.tried == [before, *(count for count in (1, 2, 4, 8) if count != before)]
    assert reported == search.tried
    assert {tried.num_tokens for tried in reported} == {100}
    assert reported[0].measured == Measured(pytest.approx(3200 / before), 0)
