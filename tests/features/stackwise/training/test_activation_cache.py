import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.core import files
from infrastructure.core.errors import StorageError
from infrastructure.features.stackwise.training import activation_cache
from infrastructure.features.stackwise.training.activation_cache import (
    CACHES,
    ActivationCache,
    Cache,
    Pages,
    bytes_needed,
    example_id,
    trunk_hash,
)
from infrastructure.monitoring.drawing.formatting import format_bytes
from tests.features.stackwise.training.trunks import (
    HIDDEN,
    Trunk,
    examples,
    expected,
    id_of,
    ids_of,
)

ROWS = examples()
IDS = ids_of(ROWS)
OTHER_ROW = SimpleNamespace(input_ids=ROWS[-1].input_ids + 1)


def pages(page_size: int = 4) -> Pages:
    return Pages(ROWS, page_size, id_of)


def key(trunk: Trunk, **others: Any) -> dict[str, Any]:
    state = trunk.state_dict()
    return {"trunk_hash": trunk_hash(state.items()), "time_step": 0, "unit": 1, **others}


def opened(directory: Path, trunk: Trunk, **options: Any) -> ActivationCache:
    given = {"hidden_size": HIDDEN, "dtype": torch.float32, "budget_bytes": 1 << 30, **options}
    known = given.pop("key", key(trunk))
    return ActivationCache(directory, known, given.pop("pages", pages()), **given)


def bits(values: list[torch.Tensor] | None) -> list[list[int]]:
    assert values is not None
    return [value.contiguous().view(torch.uint8).flatten().tolist() for value in values]


def whole(values: dict[bytes, torch.Tensor]) -> list[list[int]]:
    return bits([values[identity] for identity in IDS])


@pytest.fixture
def trunk() -> Trunk:
    return Trunk()


class TestValues:
    def test_what_is_read_is_what_a_page_computes(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        assert cache.read(IDS) is None
        cache.build(trunk)
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))
        mixed = [IDS[13], IDS[2], IDS[13]]
        assert bits(cache.read(mixed)) == bits([expected(trunk, pages())[i] for i in mixed])

    def test_a_cache_that_is_lost_has_the_same_bits_again(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        first = opened(tmp_path / "here", trunk)
        first.build(trunk)
        values = bits(first.read(IDS))
        first.discard()
        assert not (tmp_path / "here").exists()
        again = opened(tmp_path / "elsewhere", trunk)
        again.build(trunk)
        # the batches of a training have other neighbours than the pages
        assert [bits(again.read([identity]))[0] for identity in IDS] == values

    def test_what_is_there_is_not_computed_again(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        again = opened(tmp_path, trunk)
        again.build(trunk)
        assert trunk.num_calls == len(pages())
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))

    def test_bf16_is_half_and_near(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk, dtype=torch.bfloat16)
        cache.build(trunk)
        read = cache.read(IDS)
        assert read is not None
        exact = expected(trunk, pages())
        for identity, value in zip(IDS, read, strict=True):
            assert value.dtype == torch.bfloat16
            torch.testing.assert_close(value.float(), exact[identity], rtol=1e-2, atol=1e-2)

    def test_what_is_read_is_the_callers(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        read = cache.read(IDS)
        assert read is not None
        for value in read:
            value.zero_()
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))

    def test_the_first_of_equal_examples_counts(self, tmp_path: Path, trunk: Trunk) -> None:
        doubled = Pages([*ROWS[:6], *ROWS[:3], *ROWS[6:]], 4, id_of)
        cache = opened(tmp_path, trunk, pages=doubled)
        cache.build(trunk)
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))

    def test_a_function_that_gives_something_else_is_refused(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        cache = opened(tmp_path, trunk)
        right = [(length, HIDDEN) for length in pages().lengths(0)]
        for wrong, found in (
            (lambda page: [v[:-1] for v in trunk(page)], [(n - 1, HIDDEN) for n, _ in right]),
            (lambda page: trunk(page)[:-1], right[:-1]),
        ):
            shapes = re.escape(f"hidden_state_shapes_differ(shapes={found}, expected={right})")
            with pytest.raises(ValueError, match=shapes):
                cache.build(wrong)
        assert not list(cache.folder.glob("*.page"))

    def test_gradients_are_not_kept(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        seen = []

        def compute(page: list[SimpleNamespace]) -> list[torch.Tensor]:
            seen.append(torch.is_grad_enabled())
            return trunk(page)

        cache.build(compute)
        assert seen == [False] * len(pages())


class TestKeys:
    @pytest.mark.parametrize(
        "change",
        [
            {"key": {"trunk_hash": "another"}},
            {"key": {"time_step": 1}},
            {"key": {"unit": 2}},
            {"pages": Pages([*ROWS[:-1], OTHER_ROW], 4, id_of)},
            {"dtype": torch.bfloat16, "hidden_size": 2 * HIDDEN},  # files of the same size
        ],
    )
    def test_a_page_of_another_cache_is_not_believed(
        self, tmp_path: Path, trunk: Trunk, change: dict[str, Any]
    ) -> None:
        """Nothing else differs, so the files of both have the same names and sizes."""
        known = {**key(trunk), **change.get("key", {})}
        stale = opened(tmp_path, trunk, **{**change, "key": known})
        stale.build(Trunk(seed=1, hidden_size=stale.hidden_size))
        sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.page"))]
        cache = opened(tmp_path, trunk)
        assert sizes[:4] == [cache._page_bytes(number) for number in range(4)]
        cache.build(trunk)
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))
        assert trunk.num_calls == len(pages())

    def test_a_page_of_another_number_is_not_believed(self, tmp_path: Path) -> None:
        same_length = [SimpleNamespace(input_ids=torch.tensor([i, i + 1])) for i in range(8)]
        order = Pages(same_length, 4, id_of)
        trunk = Trunk()
        cache = opened(tmp_path, trunk, pages=order)
        cache.build(trunk)
        first, second = sorted(cache.folder.glob("*.page"))
        files.exchange(first, second)
        again = opened(tmp_path, trunk, pages=order)
        again.build(trunk)
        right = expected(trunk, order)
        ids = ids_of(same_length)
        assert bits(again.read(ids)) == bits([right[identity] for identity in ids])

    def test_a_directory_that_cannot_be_written(self, tmp_path: Path, trunk: Trunk) -> None:
        (tmp_path / "file").write_text("")
        reason = re.escape(f"cache_not_writable(directory={tmp_path / 'file'}, reason=File exists")
        with pytest.raises(ValueError, match=reason):
            opened(tmp_path / "file", trunk)


class TestIds:
    def test_an_id_is_its_content(self) -> None:
        row = [5, 7, 9]
        same = [np.array(row, np.int32), torch.tensor(row), tuple(row), np.array(row, np.uint16)]
        assert {example_id(ids) for ids in same} == {example_id(row)}
        assert len(example_id(row)) == 16
        others = [[5, 7], [5, 9, 7], [5, 7, 9, 0], []]
        assert len({example_id(ids) for ids in [row, *others]}) == 5

    def test_what_is_supervised_counts_where_it_is_given(self) -> None:
        ids = [1, 2, 3]
        found = {
            example_id(ids),
            example_id(ids, np.array([False, True, True])),
            example_id(ids, torch.tensor([False, False, True])),
        }
        assert len(found) == 3


class TestTrunkHash:
    def test_every_bit_name_shape_and_type_counts(self) -> None:
        weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
        flipped = weight.clone()
        flipped.view(torch.int32)[3, 5] ^= 1
        variants = [
            [("a", weight)],
            [("b", weight)],
            [("a", flipped)],
            [("a", weight.view(6, 4))],
            [("a", weight.view(torch.int32))],
            [("a", weight), ("b", weight)],
            [("a", weight.to(torch.bfloat16))],
            [("a", weight.to(torch.float8_e4m3fn))],
            [("a", weight.t())],
        ]
        assert len({trunk_hash(variant) for variant in variants}) == len(variants)

    def test_order_and_layout_do_not_count(self) -> None:
        weight = torch.randn(4, 6)
        pairs = [("a", weight), ("b", torch.tensor(1))]
        laid_out = weight.t().contiguous().t()
        assert trunk_hash(pairs) == trunk_hash([pairs[1], ("a", laid_out)])


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "last byte":
        data = data[:-1]
    elif how == "empty":
        data = bytearray()
    elif how == "half zero":  # a file whose blocks never reached the disk
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    elif how == "longer":
        data += b"\0"
    else:
        position = {"flip in the hash": 3, "flip in a value": 77, "flip at the end": -1}[how]
        data[position] ^= 0x10
    path.write_bytes(data)


class TestDamage:
    @pytest.mark.parametrize(
        "how",
        [
            *("cut", "last byte", "empty", "half zero", "longer"),
            *("flip in the hash", "flip in a value", "flip at the end"),
        ],
    )
    def test_a_damaged_page_is_built_again(self, tmp_path: Path, trunk: Trunk, how: str) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        damage(cache.folder / "00000002.page", how)
        calls = trunk.num_calls
        again = opened(tmp_path, trunk)
        again.build(trunk)
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))
        assert trunk.num_calls == calls + 1
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))
        assert trunk.num_calls == calls + 1

    def test_what_a_killed_builder_left_is_removed(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        part = cache.folder / ".00000000.page.01234567.part"
        part.write_bytes(b"half")
        opened(tmp_path, trunk)
        assert not part.exists()

    def test_a_disk_that_keeps_nothing_ends_the_training(
        self, tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        monkeypatch.setattr(cache, "_is_whole", lambda number: False)
        calls, page = trunk.num_calls, cache.folder / "00000002.page"
        repeatedly = re.escape(f"stackwise.page_damaged_repeatedly(page={page}, count=3")
        with pytest.raises(StorageError, match=repeatedly):
            cache.read(IDS[8:])
        assert trunk.num_calls == calls + 3

    def test_a_full_disk_explains_what_to_do(
        self, tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = opened(tmp_path, trunk)

        def full(path: Path) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(activation_cache, "atomic_write", full)
        failed = re.escape(f"cache_write_failed(folder={tmp_path}, reason=No space left on device")
        with pytest.raises(StorageError, match=failed):
            cache.build(trunk)


class TestBudget:
    def test_the_first_pages_that_fit(self, tmp_path: Path, trunk: Trunk) -> None:
        sizes = [opened(tmp_path, trunk)._page_bytes(number) for number in range(len(pages()))]
        cache = opened(tmp_path, trunk, budget_bytes=sum(sizes[:3]) + sizes[3] - 1)
        cache.build(trunk)
        assert trunk.num_calls == 3
        within = [identity for identity in IDS if pages().find(identity)[0] < 3]  # type: ignore[index]
        assert cache.read(within) is not None
        assert cache.read(IDS) is None
        assert sum(p.stat().st_size for p in cache.folder.glob("*.page")) == sum(sizes[:3])
        exact = opened(tmp_path, trunk, budget_bytes=sum(sizes[:4]))
        assert exact.num_pages == 4
        assert sizes[0] == 32 + sum(pages().lengths(0)) * HIDDEN * 4
        opened(tmp_path, trunk).build(trunk)  # a larger one continues where it ended
        assert trunk.num_calls == len(pages())

    def test_bytes_needed(self) -> None:
        # 10 k examples of 512 tokens at a width of 2048: about 21 GB for a time step
        assert bytes_needed(10_000 * 512, 2048, torch.bfloat16) == 20_971_520_000

    def test_a_disk_that_is_too_small_is_refused_with_numbers(
        self, tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        _, *others = sorted(cache.folder.glob("*.page"))
        needed = sum(path.stat().st_size for path in others)
        for path in others:
            path.unlink()
        calls = trunk.num_calls
        monkeypatch.setattr(activation_cache, "disk_free_bytes", lambda folder: needed - 1)
        numbers = [format_bytes(number) for number in (needed, needed - 1)]
        space = f"folder={tmp_path}, needed={numbers[0]}, free={numbers[1]}"
        with pytest.raises(ValueError, match=re.escape(f"cache_exceeds_free_space({space}")):
            cache.build(trunk)
        assert trunk.num_calls == calls
        for free in (needed, None):  # just enough, or unknown
            monkeypatch.setattr(activation_cache, "disk_free_bytes", lambda folder, free=free: free)
            cache.build(trunk)
        assert trunk.num_calls == calls + len(others)


def test_pages_are_read_in_their_order() -> None:
    order = Pages([*ROWS[:6], *ROWS[:3], *ROWS[6:]], 6, id_of)
    assert [order.ids(number) for number in range(len(order))] == [
        *(IDS[:6], IDS[6:12], IDS[12:18], IDS[18:])
    ]
    assert [len(rows) for rows in map(order.examples, range(4))] == [6, 6, 6, 2]
    assert order.lengths(3) == [len(row.input_ids) for row in ROWS[18:]]
    found = [order.find(identity) for identity in (IDS[0], IDS[5], IDS[6], IDS[19], b"?")]
    assert found == [(0, 0), (0, 5), (1, 0), (3, 1), None]


def test_ours_keeps_the_contract_of_a_cache() -> None:
    methods = [name for name in vars(Cache) if not name.startswith("_")]
    assert "read" in methods
    assert all(callable(getattr(CACHES.get("disk"), name)) for name in methods)
