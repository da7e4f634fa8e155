import json
import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers import LlamaConfig, LlamaForCausalLM

from infrastructure.core.process_memory import resident_bytes
from infrastructure.features.leak_watch.leak_watch import (
    NUM_TRACED,
    Leak,
    LeakWatch,
    LiveTensors,
    kendall,
    largest_lines,
)

MIB = 1 << 20
GIB = 1 << 30


def reports(readings: list[int], watch: LeakWatch) -> list[str]:
    leaks = [watch.add(step, size) for step, size in enumerate(readings)]
    return [str(leak) for leak in leaks if leak]


def test_a_leak_is_reported_once_with_the_line_that_holds_it() -> None:
    watch = LeakWatch(window=6)
    held: list[torch.Tensor] = []
    found = []
    for step in range(40):
        held.append(torch.zeros(MIB))  # the line to be found
        leak = watch.add(10 * step, GIB + sum(t.nbytes for t in held) * 8)
        found += [leak] if leak else []
    assert len(found) == 1
    assert found[0].bytes_per_step == pytest.approx(3.2 * MIB)
    line, size = found[0].lines[0]
    assert line.startswith(f"{__file__}:")
    source = Path(__file__).read_text().splitlines()[int(line.rsplit(":", 1)[1]) - 1]
    assert "the line to be found" in source
    assert 2 * 4 * MIB <= size < 4 * 4 * MIB  # without those of the newest reading
    assert "leak_watch.rate(mib_per_step=3.2" in str(found[0])
    assert not tracemalloc.is_tracing()


def test_a_leak_is_reported_after_two_windows_and_six_more_readings() -> None:
    watch = LeakWatch()
    leaks = [watch.add(2 * step, GIB + 10 * MIB * step) for step in range(60)]
    found = [(step, leak.bytes_per_step) for step, leak in enumerate(leaks) if leak]
    assert found == [(29, 5 * MIB)]


def rising(increments: list[int], start: int = GIB) -> list[int]:
    return [start + sum(increments[:number]) for number in range(len(increments) + 1)]


@pytest.mark.parametrize(
    ("readings", "is_leak"),
    [
        (rising([32 * MIB // 4] * 20), True),  # 32 MiB over four intervals
        (rising([32 * MIB // 4 - 1] * 20), False),
        (rising([68 * MIB] * 20, 12 * GIB), True),  # 2% of 12 GiB are 246 MiB
        (rising([60 * MIB] * 20, 12 * GIB), False),
        (rising([100 * MIB] * 5 + [81 * MIB] * 15), True),
        (rising([100 * MIB] * 5 + [79 * MIB] * 4 + [0] * 11), False),
        # Of the ten pairs, one in the wrong order leaves a correlation of 0.8, and two of 0.6.
        (rising([50 * MIB, -MIB, *[50 * MIB] * 2] + [50 * MIB] * 16), True),
        (rising([50 * MIB, -MIB, 50 * MIB, -MIB] + [50 * MIB] * 3 + [0] * 13), False),
    ],
)
def test_what_grows_enough_and_steadily_is_a_leak(readings: list[int], is_leak: bool) -> None:
    watch = LeakWatch(window=5)
    found = [step for step, size in enumerate(readings) if watch.add(step, size)]
    assert found == ([15] if is_leak else [])


def test_the_largest_lines_are_listed_in_order_of_their_size() -> None:
    leak = Leak(1.5 * MIB, (("a.py:3", 5 * MIB), ("b.py:4", 1_200_000)))
    rate = "leak_watch.rate(mib_per_step=1.5)"
    assert (
        str(leak) == f"leak_watch.origin(growth={rate}, lines=a.py:3 (5.0 MiB); b.py:4 (1.1 MiB))"
    )
    assert str(Leak(1.5 * MIB, ())) == f"leak_watch.outside_python(growth={rate})"
    tracemalloc.start(12)
    try:
        held: list[object] = [bytearray(3 * MIB)]
        gone = bytearray(9 * MIB)
        del gone
        tensors = Counter({"a.py:3": 2 * MIB, "b.py:4": 7 * MIB, "": 90 * MIB})
        lines = largest_lines(tensors)
    finally:
        tracemalloc.stop()
    assert [line for line, _ in lines] == [
        "b.py:4",
        f"{__file__}:{line_of('bytearray(3')}",
        "a.py:3",
    ]
    assert [round(size / MIB) for _, size in lines] == [7, 3, 2]
    tracemalloc.start(12)
    try:
        held += json.loads(json.dumps(["x" * MIB]))  # made by a module of Python
        assert largest_lines(Counter())[0][0] == f"{__file__}:{line_of('a module of')}"
    finally:
        tracemalloc.stop()


def line_of(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, start=1) if text in line)


NOISE = random.Random(0)


@pytest.mark.parametrize(
    "readings",
    [
        [GIB + NOISE.randrange(300 * MIB) for _ in range(200)],
        [GIB] * 30 + [3 * GIB] * 30,
        [GIB + step * 1000 for step in range(200)],
    ],
    ids=["rises and falls", "one jump", "slower than matters"],
)
def test_other_growth_is_no_leak(readings: list[int]) -> None:
    assert reports(readings, LeakWatch()) == []


def test_a_suspicion_that_is_not_confirmed_ends_without_a_word() -> None:
    watch = LeakWatch(window=6)
    warm_up = [GIB + step * 50 * MIB for step in range(12)]
    assert reports(warm_up + [warm_up[-1]] * 20, watch) == []
    assert not tracemalloc.is_tracing()


def test_what_grows_for_one_window_only_is_not_traced() -> None:
    """Tracing makes steps several times as long, and caches fill up once."""
    watch = LeakWatch(window=6)
    for step in range(60):
        assert watch.add(step, GIB + min(step, 8) * 50 * MIB) is None
        assert not tracemalloc.is_tracing()


def test_caches_that_fill_up_are_not_traced_and_a_leak_beside_them_is_found() -> None:
    def caches(step: int) -> int:
        return GIB + int(600 * MIB * (1 - 0.95**step))

    watch = LeakWatch(window=6)
    for step in range(200):
        assert watch.add(step, caches(step)) is None
        assert not tracemalloc.is_tracing()
        assert _get_current_dispatch_mode() is None
    leaking = [caches(step) + step * 20 * MIB for step in range(80)]
    assert len(reports(leaking, LeakWatch(window=6))) == 1


@pytest.mark.parametrize("counts_tensors", [True, False])
def test_tracing_ends_after_a_few_readings_and_tensors_are_counted_before(
    counts_tensors: bool,
) -> None:
    watch = LeakWatch(window=6, counts_tensors=counts_tensors)
    traced = []
    for step in range(60):
        watch.add(step, GIB + step * 50 * MIB)
        is_counting = _get_current_dispatch_mode() is not None
        assert not (is_counting and tracemalloc.is_tracing())
        traced += [is_counting, tracemalloc.is_tracing()]
    num_counted, num_traced = sum(traced[::2]), sum(traced[1::2])
    assert num_counted + num_traced == NUM_TRACED
    assert (num_counted > 0) is counts_tensors
    assert num_traced > 0


def test_what_no_python_object_holds_is_named() -> None:
    watch = LeakWatch(window=6)
    [sentence] = reports([GIB + step * 50 * MIB for step in range(18)], watch)
    assert "leak_watch.outside_python" in sentence or "leak_watch.origin" in sentence


def test_somebody_elses_tracing_is_left_alone() -> None:
    tracemalloc.start()
    try:
        assert reports([GIB + step * 50 * MIB for step in range(60)], LeakWatch()) == []
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_stopping_ends_the_tracing() -> None:
    watch = LeakWatch(window=6)
    reports([GIB + step * 50 * MIB for step in range(12 + NUM_TRACED // 2)], watch)
    assert tracemalloc.is_tracing()
    watch.stop()
    assert not tracemalloc.is_tracing()


@pytest.mark.parametrize(
    ("values", "tau"), [([1, 2, 3], 1.0), ([3, 2, 1], -1.0), ([1, 1, 1], 0.0), ([1, 3, 2], 1 / 3)]
)
def test_kendalls_tau(values: list[int], tau: float) -> None:
    assert kendall(values) == pytest.approx(tau)


def test_living_tensors_are_those_that_python_or_a_graph_holds() -> None:
    weight = torch.ones(MIB, requires_grad=True)
    with LiveTensors() as tensors:
        held = torch.zeros(MIB)[:1]  # a part, which holds all of it
        loss = (weight * 2).exp().sum()  # its exponentials are what the backward pass needs
        torch.ones(MIB).sum()
        assert sorted(tensors.bytes_of_line().values()) == [4 * MIB, 4 * MIB + 4]
        tensors.grow_older()
        new = torch.zeros(MIB)
        assert len(tensors.bytes_of_line()) == len(tensors.bytes_of_line(is_old=True)) + 1
        del held, loss, new
        assert not tensors.bytes_of_line()


def test_a_backward_pass_counts_for_the_line_that_calls_it() -> None:
    weight = torch.ones(MIB, requires_grad=True)
    with LiveTensors() as tensors:
        (weight * 2).sum().backward()
    held = tensors.bytes_of_line()
    assert sum(held.values()) >= 4 * MIB
    assert all(line.startswith(__file__) for line in held)


def test_watching_tensors_keeps_no_memory_of_those_that_are_gone() -> None:
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=128, vocab_size=8000,
    )  # fmt: skip
    model, ids = LlamaForCausalLM(config), torch.zeros(4, 256, dtype=torch.long)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    with LiveTensors():
        step()
        before = resident_bytes()
        for _ in range(8):
            step()
    logits_bytes = 4 * 256 * 8000 * 4
    assert resident_bytes() - before < 4 * logits_bytes  # and not 8 of them, and all the rest
