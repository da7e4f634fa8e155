import errno
import fcntl
import json
import threading
import time
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
    refuse_without_space,
    trunk_hash,
)
from tests.features.stackwise.training.trunks import HIDDEN, Trunk, examples, expected, ids_of

ROWS = examples()
IDS = ids_of(ROWS)


def pages(page_size: int = 4) -> Pages:
    return Pages(ROWS, page_size)


def key(trunk: Trunk, **others: Any) -> dict[str, Any]:
    state = trunk.state_dict()
    return {"trunk_hash": trunk_hash(state.items()), "time_step": 0, "unit": 1, **others}


def opened(directory: Path, trunk: Trunk, **options: Any) -> ActivationCache:
    options = {"hidden_size": HIDDEN, **options}
    return ActivationCache(directory, key(trunk), options.pop("pages", pages()), **options)


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
        assert not cache.covers(IDS)
        assert cache.read(IDS) is None
        cache.build(trunk)
        assert cache.covers(IDS)
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))
        mixed = [IDS[13], IDS[2], IDS[13]]
        assert bits(cache.read(mixed)) == bits([expected(trunk, pages())[i] for i in mixed])
        cache.close()

    def test_a_cache_that_is_lost_has_the_same_bits_again(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        first = opened(tmp_path / "here", trunk)
        first.build(trunk)
        values = bits(first.read(IDS))
        first.discard()
        assert list((tmp_path / "here").iterdir()) == []
        again = opened(tmp_path / "elsewhere", trunk)
        again.build(trunk)
        # the batches of a training have other neighbours than the pages
        assert [bits(again.read([identity]))[0] for identity in IDS] == values

    def test_what_is_there_is_not_computed_again(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        cache.close()
        again = opened(tmp_path, trunk)
        assert again.missing_bytes() == 0
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
        assert cache.statistics.bytes_read == bytes_needed(
            pages().num_tokens, HIDDEN, torch.bfloat16
        )

    def test_what_is_read_is_the_callers(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        read = cache.read(IDS)
        assert read is not None
        for value in read:
            value.zero_()
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))

    def test_the_first_of_equal_examples_counts(self, tmp_path: Path, trunk: Trunk) -> None:
        doubled = Pages([*ROWS[:6], *ROWS[:3], *ROWS[6:]], 4)
        cache = opened(tmp_path, trunk, pages=doubled)
        cache.build(trunk)
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))

    def test_a_function_that_gives_something_else_is_refused(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        cache = opened(tmp_path, trunk)
        with pytest.raises(ValueError, match=r"stackwise\.hidden_state_shapes_differ"):
            cache.build(lambda page: [value[:-1] for value in trunk(page)])
        with pytest.raises(ValueError, match=r"stackwise\.hidden_state_shapes_differ"):
            cache.build(lambda page: trunk(page)[:-1])

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
            {"time_step": 1},
            {"unit": 2},
            {"labels_version": 2},
            {"mask_seed": 3},
            {"data": "another"},
        ],
    )
    def test_whatever_values_depend_on_is_another_folder(
        self, tmp_path: Path, trunk: Trunk, change: dict[str, Any]
    ) -> None:
        first = opened(tmp_path, trunk)
        first.build(trunk)
        other = ActivationCache(tmp_path, key(trunk, **change), pages(), hidden_size=HIDDEN)
        assert other.folder != first.folder
        assert other.missing_bytes() > 0

    def test_page_size_order_format_and_width_are_in_the_key(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        caches = [
            opened(tmp_path, trunk),
            opened(tmp_path, trunk, pages=pages(5)),
            opened(tmp_path, trunk, pages=Pages(ROWS[::-1], 4)),
            opened(tmp_path, trunk, dtype=torch.bfloat16),
            opened(tmp_path, trunk, hidden_size=8),
        ]
        assert len({cache.folder for cache in caches}) == len(caches)

    def test_one_byte_of_the_trunk_changes_the_key_and_what_is_read(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        """The mutant that leaves the trunk's hash out of the key reads stale values here."""
        before = opened(tmp_path, trunk)
        before.build(trunk)
        stale = bits(before.read(IDS))
        before.close()
        raw = trunk.layer.weight.detach().view(torch.int32)
        raw[0, 0] ^= 1 << 22
        after = opened(tmp_path, trunk)
        after.build(trunk)
        assert bits(after.read(IDS)) == whole(expected(trunk, pages())) != stale

    def test_a_page_of_another_cache_is_not_believed(self, tmp_path: Path, trunk: Trunk) -> None:
        other = Trunk(seed=1)
        stale = opened(tmp_path, other)
        stale.build(other)
        cache = opened(tmp_path, trunk)
        for page in sorted(stale.folder.glob("*.page")):
            (cache.folder / page.name).write_bytes(page.read_bytes())
        cache.build(trunk)  # the sizes are right
        assert trunk.num_calls == 0
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))
        assert cache.statistics.pages_damaged == len(pages())

    def test_a_page_of_another_number_is_not_believed(self, tmp_path: Path) -> None:
        same_length = [SimpleNamespace(input_ids=torch.tensor([i, i + 1])) for i in range(8)]
        order = Pages(same_length, 4)
        trunk = Trunk()
        cache = opened(tmp_path, trunk, pages=order)
        cache.build(trunk)
        cache.close()
        first, second = sorted(cache.folder.glob("*.page"))
        files.exchange(first, second)
        again = opened(tmp_path, trunk, pages=order)
        again.build(trunk)
        right = expected(trunk, order)
        ids = ids_of(same_length)
        assert bits(again.read(ids)) == bits([right[identity] for identity in ids])

    def test_the_key_can_be_read_and_a_damaged_one_is_written_again(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        cache = opened(tmp_path, trunk)
        path = cache.folder / "key.json"
        written = json.loads(path.read_text())
        assert written.items() >= key(trunk).items()
        assert written["dtype"] == "F32"
        cache.close()
        path.write_bytes(path.read_bytes()[:-20])
        opened(tmp_path, trunk).close()
        assert json.loads(path.read_text()) == written

    def test_a_key_that_is_no_json_is_refused(self, tmp_path: Path, trunk: Trunk) -> None:
        with pytest.raises(ValueError, match="JSON"):
            ActivationCache(tmp_path, {"unit": trunk}, pages(), hidden_size=HIDDEN)
        with pytest.raises(ValueError, match="dtype"):
            ActivationCache(tmp_path, {"dtype": "F32"}, pages(), hidden_size=HIDDEN)

    def test_other_formats_are_refused(self, tmp_path: Path, trunk: Trunk) -> None:
        with pytest.raises(ValueError, match=r"stackwise\.unsupported_cache_dtype"):
            opened(tmp_path, trunk, dtype=torch.float16)

    def test_a_directory_that_cannot_be_written(self, tmp_path: Path, trunk: Trunk) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match=r"stackwise\.cache_not_writable"):
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
        cache.close()
        damage(cache.folder / "00000002.page", how)
        calls = trunk.num_calls
        again = opened(tmp_path, trunk)
        again.build(trunk)
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))
        assert trunk.num_calls == calls + 1
        assert again.statistics.pages_damaged == 1
        assert again.statistics.pages_built == 1
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))
        assert trunk.num_calls == calls + 1

    def test_one_that_is_replaced_while_it_is_open_is_compared_again(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        cache.read(IDS)
        path = cache.folder / "00000001.page"
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        with files.atomic_write(path) as file:
            file.write(data)
        assert bits(cache.read(IDS)) == whole(expected(trunk, pages()))

    def test_what_a_killed_builder_left_is_removed(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.close()
        part = cache.folder / ".00000000.page.01234567.part"
        part.write_bytes(b"half")
        opened(tmp_path, trunk)
        assert not part.exists()

    def test_a_disk_that_keeps_nothing_ends_the_training(
        self, tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        monkeypatch.setattr(cache, "_is_whole", lambda number, file: False)
        with pytest.raises(StorageError, match=r"stackwise\.page_damaged_repeatedly"):
            cache.read(IDS)

    def test_a_full_disk_explains_what_to_do(
        self, tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = opened(tmp_path, trunk)

        def full(path: Path) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(activation_cache, "atomic_write", full)
        with pytest.raises(StorageError, match=r"stackwise\.cache_write_failed"):
            cache.build(trunk)


class TestBudget:
    def test_the_first_pages_that_fit(self, tmp_path: Path, trunk: Trunk) -> None:
        one = opened(tmp_path, trunk)
        sizes = [one._page_bytes(number) for number in range(len(pages()))]
        one.close()
        cache = opened(tmp_path, trunk, budget_bytes=sum(sizes[:3]) + sizes[3] - 1)
        cache.build(trunk)
        assert trunk.num_calls == 3
        within = [identity for identity in IDS if pages().find(identity)[0] < 3]  # type: ignore[index]
        assert cache.covers(within)
        assert not cache.covers(IDS)
        assert cache.read(IDS) is None
        assert (cache.statistics.hits, cache.statistics.misses) == (0, len(IDS))
        assert sum(p.stat().st_size for p in cache.folder.glob("*.page")) == sum(sizes[:3])

    def test_a_larger_budget_goes_on_where_a_smaller_one_ended(
        self, tmp_path: Path, trunk: Trunk
    ) -> None:
        small = opened(tmp_path, trunk, budget_bytes=4000)
        small.build(trunk)
        small.close()
        built = trunk.num_calls
        assert 0 < built < len(pages())
        opened(tmp_path, trunk).build(trunk)
        assert trunk.num_calls == len(pages())

    def test_none_fits(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk, budget_bytes=0)
        cache.build(trunk)
        assert not cache.covers(IDS[:1])

    def test_bytes_needed(self) -> None:
        # 10 k examples of 512 tokens at a width of 2048: about 21 GB for a time step
        assert bytes_needed(10_000 * 512, 2048, torch.bfloat16) == 20_971_520_000
        assert bytes_needed(5, 8, torch.float32, 3, 2) == 5 * 8 * 4 * 6

    def test_a_disk_that_is_too_small_is_refused_with_numbers(
        self, tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(activation_cache, "disk_free_bytes", lambda folder: 1 << 30)
        refuse_without_space(tmp_path, 1 << 30)
        with pytest.raises(ValueError, match=r"stackwise\.cache_exceeds_free_space"):
            refuse_without_space(tmp_path, 2 << 30)
        cache = opened(tmp_path, trunk)
        monkeypatch.setattr(activation_cache, "disk_free_bytes", lambda folder: 100)
        with pytest.raises(ValueError, match=r"stackwise\.cache_exceeds_free_space"):
            cache.build(trunk)
        assert trunk.num_calls == 0

    def test_pages_without_examples(self) -> None:
        with pytest.raises(ValueError, match=r"stackwise\.nothing_to_cache"):
            Pages([], 4)
        with pytest.raises(ValueError, match=r"stackwise\.nothing_to_cache"):
            Pages(ROWS, 0)


def test_without_locks_a_cache_of_ones_own_is_removed_and_no_other(
    tmp_path: Path, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody can tell whether another process reads it, its disk is given back all the
    same."""

    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    own, another = (opened(tmp_path, trunk, pages=pages(size)) for size in (4, 5))
    for cache in (own, another):
        cache.build(trunk)
    another.close()
    assert not activation_cache.remove_unused(another.folder)
    assert len(list(another.folder.glob("*.page"))) == len(pages(5))
    assert bits(own.read(IDS)) == whole(expected(trunk, pages()))
    own.discard()
    assert [path.name for path in tmp_path.iterdir()] == [another.folder.name]


class TestBuilding:
    def test_two_builders_divide_the_pages(self, tmp_path: Path) -> None:
        trunks = [Trunk(), Trunk()]
        caches = [opened(tmp_path, trunk) for trunk in trunks]
        order = Pages(ROWS, 1)
        for cache in caches:
            cache.close()
        caches = [opened(tmp_path, trunk, pages=order) for trunk in trunks]
        both = threading.Barrier(2)

        def build(which: int) -> None:
            def beside_the_other(page: list[SimpleNamespace]) -> list[torch.Tensor]:
                if not trunks[which].num_calls:
                    both.wait(60)  # each is in its first page, before any of them is done
                return trunks[which](page)

            caches[which].build(beside_the_other)

        threads = [threading.Thread(target=build, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        right = expected(trunks[0], order)
        for cache in caches:
            assert bits(cache.read(IDS)) == bits([right[identity] for identity in IDS])
        built = [cache.statistics.pages_built for cache in caches]
        assert sum(built) == len(order)
        assert min(built) > 0

    def test_a_builder_that_fails_leaves_its_page_to_the_other(self, tmp_path: Path) -> None:
        trunk = Trunk()
        first, second = opened(tmp_path, trunk), opened(tmp_path, trunk)
        began, failing = threading.Event(), threading.Event()

        def fails(page: list[SimpleNamespace]) -> list[torch.Tensor]:
            began.set()
            failing.wait()
            raise RuntimeError("out of memory")

        def build() -> None:
            with pytest.raises(RuntimeError, match="out of memory"):
                first.build(fails)

        thread = threading.Thread(target=build)
        thread.start()
        began.wait()

        def compute(page: list[SimpleNamespace]) -> list[torch.Tensor]:
            failing.set()
            return trunk(page)

        second.build(compute)
        thread.join()
        assert bits(second.read(IDS)) == whole(expected(trunk, pages()))

    def test_a_build_can_be_stopped_and_goes_on(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        reported = []

        def on_page(done: int, total: int) -> None:
            reported.append((done, total))
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cache.build(trunk, on_page)
        cache.close()
        assert trunk.num_calls == 2
        again = opened(tmp_path, trunk)
        again.build(trunk, lambda done, total: reported.append((done, total)))
        assert trunk.num_calls == len(pages()) == 5
        assert reported == [(1, 5), (2, 5), *((done, 5) for done in range(1, 6))]

    def test_prefetch_compares_pages_ahead(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        cache.close()
        again = opened(tmp_path, trunk)
        again.build(trunk)
        assert again._verified == {}
        again.prefetch(IDS)
        again.prefetch([b"none of ours"])
        again.prefetch(IDS)
        deadline = time.monotonic() + 60
        while len(again._verified) < len(pages()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert set(again._verified) == set(range(len(pages())))
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))
        again.close()
        assert "temper-activations" not in {thread.name for thread in threading.enumerate()}

    def test_prefetch_leaves_damage_to_read(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        cache.close()
        damage(cache.folder / "00000000.page", "flip in a value")
        (cache.folder / "00000001.page").unlink()
        again = opened(tmp_path, trunk)
        again._compute = trunk
        again.prefetch(IDS)
        assert bits(again.read(IDS)) == whole(expected(trunk, pages()))
        again.close()


class TestStatistics:
    def test_what_is_counted(self, tmp_path: Path, trunk: Trunk) -> None:
        cache = opened(tmp_path, trunk)
        cache.build(trunk)
        cache.read(IDS)
        cache.read(IDS[:3])
        cache.read([b"unknown"])
        found = cache.statistics
        num_bytes = bytes_needed(pages().num_tokens, HIDDEN, torch.float32)
        assert (found.hits, found.misses) == (len(IDS) + 3, 1)
        assert (found.pages_built, found.examples_built) == (len(pages()), len(ROWS))
        assert found.bytes_written == num_bytes + 32 * len(pages())
        rest = bytes_needed(sum(len(row.input_ids) for row in ROWS[:3]), HIDDEN, torch.float32)
        assert found.bytes_read == num_bytes + rest


def test_ours_keeps_the_contract_of_a_cache() -> None:
    methods = [name for name in vars(Cache) if not name.startswith("_")]
    assert "read" in methods
    assert all(callable(getattr(CACHES.get("disk"), name)) for name in methods)
