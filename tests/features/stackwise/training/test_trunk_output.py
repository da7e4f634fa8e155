"""Which caches of a run are kept: of which time steps and units, in how much of the disk."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.store.examples import EXAMPLES
from infrastructure.features.stackwise.registries import CACHES
from infrastructure.features.stackwise.training.stack_phases import StackPhase
from infrastructure.features.stackwise.training.trunk_output import (
    FOLDER,
    TrunkCache,
    identity_of,
    kept_caches,
)
from tests.features.stackwise.training.memory_cache import MemoryCache

WIDTH, NUM_ROWS = 8, 20
LENGTHS = np.random.default_rng(0).integers(2, 9, NUM_ROWS)
ROWS = [
    SimpleNamespace(input_ids=np.arange(n) + i, supervised=np.ones(n, np.bool_), pictures=())
    for i, n in enumerate(LENGTHS)
]


class Data:
    num_examples = NUM_ROWS
    fingerprint = "rows"

    def train_batches(self, *_: int) -> Iterator[list[Any]]:
        yield ROWS


def batch_of(examples: Any) -> dict[str, Any]:
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.as_tensor(one.input_ids) for one in examples], batch_first=True
    )
    return {EXAMPLES: list(examples), "input_ids": ids}


class Trunk:
    """Hidden states that are the token and what the trunk adds; counts its pages."""

    def __init__(self, adds: float = 1.0) -> None:
        self.adds, self.num_pages = torch.tensor(adds), 0

    def run(self, batch: Any) -> torch.Tensor:
        self.num_pages += 1
        return (batch["input_ids"] + self.adds).unsqueeze(-1).expand(-1, -1, WIDTH)


def phases_of(steps: list[int | None], units: list[int]) -> list[StackPhase]:
    return [StackPhase("", 1, start=unit, time_step=step) for step in steps for unit in [0, *units]]


def caches(folder: Path, phases: list[StackPhase], **settings: Any) -> TrunkCache:
    config = TrainingConfig(cache_dtype="fp32", **settings)
    source: Any = SimpleNamespace(data=Data(), prepare_batch=batch_of, facts={"seed": 0})
    return TrunkCache(SimpleNamespace(hidden_size=WIDTH), source, folder, config, phases)  # type: ignore[arg-type]


def enter(one: TrunkCache, trunk: Trunk, time_step: int | None = 0, unit: int = 1) -> None:
    phase = StackPhase("", 1, start=unit, time_step=time_step)
    one.enter(phase, iter([("weight", trunk.adds)]), trunk.run)


def on_disk(folder: Path) -> list[tuple[int, int]]:
    matches = [FOLDER.fullmatch(path.name) for path in folder.iterdir()]
    return sorted((int(match[1]), int(match[2])) for match in matches if match)


def test_what_is_read_is_what_the_trunk_gives(tmp_path: Path) -> None:
    trunk, one = Trunk(), caches(tmp_path, phases_of([None], [1]))
    enter(one, trunk, None)
    batch = batch_of([ROWS[7], ROWS[2]])
    read = one.read(batch, torch.empty(0))
    assert read is not None
    expected = trunk.run(batch) * (batch["input_ids"] != 0).unsqueeze(-1)
    expected[:, 0] = trunk.run(batch)[:, 0]
    lengths = [len(ROWS[7].input_ids), len(ROWS[2].input_ids)]
    for row, length in enumerate(lengths):
        assert torch.equal(read[row, :length], trunk.run(batch)[row, :length])
        assert not read[row, length:].any()
    strange = SimpleNamespace(input_ids=np.arange(3), supervised=np.zeros(3, np.bool_), pictures=())
    assert one.read(batch_of([strange]), torch.empty(0)) is None
    enter(one, trunk, None, unit=0)
    assert one.read(batch, torch.empty(0)) is None


@pytest.mark.parametrize(("size", "stores_all"), [(1, False), (2, False), (1, True)])
def test_each_time_step_is_built_once_and_the_newest_are_kept(
    tmp_path: Path, size: int, stores_all: bool
) -> None:
    trunk = Trunk()
    settings = {"time_step_cache_size": size, "store_all_time_steps": stores_all}
    one = caches(tmp_path, phases_of([0, 1, 2, 3], [1]), **settings)
    for time_step in (0, 0, 1, 2, 2, 3):
        enter(one, trunk, time_step)
    assert trunk.num_pages == 4 * 2
    kept = 4 if stores_all else size
    assert on_disk(tmp_path) == [(time_step, 1) for time_step in range(4 - kept, 4)]


def test_a_run_that_resumes_goes_on_with_what_is_there(tmp_path: Path) -> None:
    phases = phases_of([0, 1, 2, 3, 4], [1])
    first = caches(tmp_path, phases, time_step_cache_size=2)
    for time_step in (0, 1):
        enter(first, Trunk(), time_step)
    first.close(is_over=False)
    trunk, again = Trunk(), caches(tmp_path, phases, time_step_cache_size=2)
    enter(again, trunk, 1)
    assert trunk.num_pages == 0
    enter(again, trunk, 2)
    assert on_disk(tmp_path) == [(1, 1), (2, 1)]
    again.close(is_over=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mode", "units"), [("stack", [3]), ("rack", [1, 2, 3])])
def test_which_units_are_kept(tmp_path: Path, mode: str, units: list[int]) -> None:
    one = caches(tmp_path, phases_of([0], [1, 2, 3]), cache_mode=mode)
    for unit in (1, 2, 3):
        enter(one, Trunk(), unit=unit)
    assert on_disk(tmp_path) == [(0, unit) for unit in units]


def test_a_trunk_that_changed_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for adds in (1.0, 2.0):
        trunk, one = Trunk(adds), caches(tmp_path, phases_of([0], [1]))
        enter(one, trunk)
        assert trunk.num_pages == 2
        batch = batch_of(ROWS[:1])
        read = one.read(batch, torch.empty(0))
        assert read is not None
        assert torch.equal(read, trunk.run(batch))
    assert on_disk(tmp_path) == [(0, 1)]


def test_what_another_process_removes_is_built_again(tmp_path: Path) -> None:
    trunk, one = Trunk(), caches(tmp_path, phases_of([0], [1]))
    enter(one, trunk)
    caches(tmp_path, phases_of([0], [1])).close(is_over=True)
    assert list(tmp_path.iterdir()) == []
    batch = batch_of(ROWS[:1])
    read = one.read(batch, torch.empty(0))
    assert read is not None
    assert torch.equal(read, trunk.run(batch))


def test_nothing_else_in_the_folder_is_touched(tmp_path: Path) -> None:
    names = ("notes", "activations-of-mine", f"activations-{'0' * 16}-0-1-{'0' * 16}")
    for name in names:
        (tmp_path / name).mkdir()
    one = caches(tmp_path, phases_of([0, 1], [1]))
    for time_step in (0, 1):
        enter(one, Trunk(), time_step)
    one.close(is_over=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_each_cache_gets_the_same_part_of_the_budget(tmp_path: Path) -> None:
    phases = phases_of([0, 1, 2], [1, 2])
    counts = {
        "stack": (2, 3),  # one more than the kept time steps, while a newer unit is built
        "rack": (2, 4),
    }
    for mode, count in counts.items():
        config = TrainingConfig(cache_mode=mode, time_step_cache_size=2)
        assert kept_caches(config, phases) == count
    for settings, steps, units, expected in (
        ({}, [None], [1], (1, 1)),
        ({}, [None], [], (1, 1)),
        ({}, [0, 1, 2], [1, 2], (1, 2)),
        ({"time_step_cache_size": 9}, [0, 1, 2], [1, 2], (3, 4)),
        ({"store_all_time_steps": True}, [0, 1, 2], [1], (3, 3)),
        ({"store_all_time_steps": True, "cache_mode": "rack"}, [0, 1, 2], [1, 2, 3], (3, 9)),
    ):
        given = TrainingConfig(**settings)  # type: ignore[arg-type]
        assert kept_caches(given, phases_of(steps, units)) == expected  # type: ignore[arg-type]
    one = caches(tmp_path, phases, time_step_cache_size=2, cache_size=3)
    assert one.bytes_each == 1_000_000


def test_a_packed_row_is_read_in_its_places_and_in_the_type_of_the_model(tmp_path: Path) -> None:
    trunk, one = Trunk(), caches(tmp_path, phases_of([None], [1]))
    enter(one, trunk, None)
    rows = [ROWS[3], ROWS[9], ROWS[0]]
    packed = torch.cat([torch.as_tensor(row.input_ids) for row in rows])
    batch = {EXAMPLES: rows, "input_ids": torch.cat([packed, packed[:2]])[None], "cu_seq_lens": 0}
    read = one.read(batch, torch.empty(0, dtype=torch.float16))
    assert read is not None
    assert (read.dtype, read.shape) == (torch.float16, (1, len(packed) + 2, WIDTH))
    assert torch.equal(read[0, : len(packed), 0], (packed + 1).half())
    assert not read[0, len(packed) :].any()
    assert one.read({"input_ids": batch["input_ids"]}, torch.empty(0)) is None


@pytest.mark.parametrize("change", [{"seed": 1}, {"fingerprint": "others"}])
def test_the_caches_of_another_training_are_neither_read_nor_removed(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Even with the same trunk: other data, or other masks."""
    enter(caches(tmp_path, phases_of([0], [1])), Trunk())
    other, trunk = caches(tmp_path, phases_of([0], [1])), Trunk()
    data = SimpleNamespace(num_examples=NUM_ROWS, train_batches=Data().train_batches)
    data.fingerprint = change.get("fingerprint", "rows")
    facts = {"seed": change.get("seed", 0)}
    source: Any = SimpleNamespace(data=data, prepare_batch=batch_of, facts=facts)
    other = TrunkCache(other.rack, source, tmp_path, other.config, phases_of([0], [1]))
    enter(other, trunk)
    assert trunk.num_pages == 2
    assert on_disk(tmp_path) == [(0, 1), (0, 1)]
    other.close(is_over=True)
    assert on_disk(tmp_path) == [(0, 1)]


def test_another_cache_can_be_added(tmp_path: Path) -> None:
    with CACHES.registered("memory", MemoryCache):
        one = caches(tmp_path, phases_of([0], [1]), cache_storage="memory")
        enter(one, Trunk())
        assert one.read(batch_of(ROWS[:2]), torch.empty(0)) is not None
        one.close(is_over=True)
    assert list(tmp_path.iterdir()) == []


def test_an_example_is_known_by_what_is_read_and_what_is_learnt() -> None:
    other = SimpleNamespace(**{**vars(ROWS[3]), "supervised": ~ROWS[3].supervised})
    first, second = (SimpleNamespace(sha256=digit * 64) for digit in "ab")
    seen = [
        SimpleNamespace(**{**vars(ROWS[3]), "pictures": pictures})
        for pictures in ((first,), (second,), (first, second), (second, first))
    ]
    found = [identity_of(row) for row in [*ROWS, other, *seen]]  # type: ignore[arg-type]
    assert len(set(found)) == NUM_ROWS + 5
    assert {len(one) for one in found} == {16}
    assert found[-4:] == [identity_of(row) for row in seen]  # type: ignore[arg-type]
