"""Objects in compressed form."""

import contextlib
import json
import math
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from infrastructure.backup.format import codec, objects
from infrastructure.backup.format.codec import SUFFIX, compress, decompress
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import Pack
from infrastructure.backup.format.packs import BITS, TensorBytes, encode
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError, StorageError
from tests.faults.store_history import step_that_loads, tensors_at

START = 24  # of the table


def weights(num_bytes: int, seed: int = 0) -> bytes:
    drawn = np.random.default_rng(seed).normal(0, 0.02, num_bytes // 4 + 1)
    return drawn.astype("<f4").tobytes()[:num_bytes]


def pack_of(tensors: dict[str, TensorBytes]) -> bytes:
    return b"".join(encode(tensors))


def drawn_pack(draw: random.Random) -> bytes:
    """A pack with tensors of any types and shapes."""
    tensors = {}
    for number in range(draw.randrange(8)):
        dtype = draw.choice(list(BITS))
        shape = tuple(draw.randrange(9) for _ in range(draw.randrange(4)))
        data = weights(math.prod(shape) * BITS[dtype] // 8, draw.randrange(1000))
        tensors[f"model/{number}"] = TensorBytes(dtype, shape, data)
    return pack_of(tensors)


@pytest.mark.parametrize("seed", range(60))
def test_what_goes_in_comes_out(seed: int) -> None:
    data = drawn_pack(random.Random(seed))
    assert decompress(compress(data), len(data)) == data


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7, 5), (300, 70)])
def test_every_type_of_tensor_comes_out(dtype: str, shape: tuple[int, ...]) -> None:
    size_bytes = math.prod(shape) * BITS[dtype] // 8
    data = pack_of({"model/a": TensorBytes(dtype, shape, weights(size_bytes))})
    assert decompress(compress(data), len(data)) == data


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"no pack at all", bytes(8), b"\xff" * 100, b"\x02" + bytes(7) + b"[]"]
)
def test_what_is_no_pack_comes_out_too(data: bytes) -> None:
    assert decompress(compress(data), len(data)) == data


@pytest.mark.parametrize(
    "offsets", [[0, 7], [1, 9], [0, 16], [8, 0], [-8, 0], [0], ["0", "8"], [0, 8.0], None]
)
def test_a_header_that_lies_costs_only_the_saving(offsets: object) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(8)
    assert decompress(compress(data), len(data)) == data


def test_segments_end_where_the_width_of_elements_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "SEGMENT_BYTES", 64)
    tensors = {
        "m/a": TensorBytes("F32", (20,), bytes(80)),
        "m/b": TensorBytes("I32", (4,), bytes(16)),
        "m/c": TensorBytes("BF16", (3,), bytes(6)),
        "m/d": TensorBytes("C64", (1,), bytes(8)),
    }
    data = pack_of(tensors)
    header = len(data) - 110
    widths = [segment[:2] for segment in table_of(compress(data))]
    assert sum(size for width, size in widths if width == 1) == header
    assert widths[-3:] == [(4, 64), (4, 40), (2, 6)]
    assert decompress(compress(data), len(data)) == data


def test_the_shuffle_saves_what_zstd_alone_does_not() -> None:
    data = pack_of({"model/a": TensorBytes("F32", (256, 1024), weights(1024**2))})
    assert len(compress(data)) < 0.87 * len(data)
    assert len(zstandard.compress(data, 1)) > 0.9 * len(data)


def test_zstd_itself_opens_the_file() -> None:
    data = pack_of({"model/a": TensorBytes("U8", (1000,), weights(1000))})
    opened = zstandard.ZstdDecompressor().stream_reader(compress(data), read_across_frames=True)
    assert opened.read() == data  # elements of one byte are not shuffled


def test_the_same_bytes_compress_to_the_same_bytes() -> None:
    data = drawn_pack(random.Random(7))
    assert compress(data) == compress(memoryview(bytearray(data)))


def test_damage_of_any_byte_is_noticed() -> None:
    data = pack_of({"model/a": TensorBytes("F32", (60,), weights(240))})
    packed = compress(data)
    for place in range(len(packed)):
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[place] ^= 1 << bit
            with pytest.raises(CheckpointError):
                decompress(damaged, len(data))


def test_every_cut_is_noticed() -> None:
    data = pack_of({"model/a": TensorBytes("F32", (60,), weights(240))})
    packed = compress(data)
    for end in range(len(packed)):
        with pytest.raises(CheckpointError):
            decompress(packed[:end], len(data))
    with pytest.raises(CheckpointError):
        decompress(packed + b"\0", len(data))
    with pytest.raises(CheckpointError):
        decompress(packed + packed, 2 * len(data))


def table_of(packed: bytes) -> list[tuple[int, int, int]]:
    (count,) = struct.unpack_from("<I", packed, START - 4)
    return list(struct.iter_unpack("<BII", packed[START : START + 9 * count]))


def hostile(
    segments: list[tuple[int, int, bytes]],
    *,
    magic: int = 0x184D2A5A,
    name: bytes = b"temper\0\1",
    count: int | None = None,
    length: int | None = None,
    lengths: list[int] | None = None,
) -> bytes:
    """A file with a right CRC, in which something is a lie."""
    lengths = lengths or [len(frame) for _, _, frame in segments]
    table = b"".join(
        struct.pack("<BII", width, size, stored)
        for (width, size, _), stored in zip(segments, lengths, strict=True)
    )
    covered = struct.pack("<I", len(segments) if count is None else count) + table
    covered += b"".join(frame for _, _, frame in segments)
    start = struct.pack("<II", magic, 16 + len(table) if length is None else length) + name
    return start + struct.pack("<I", zlib.crc32(covered)) + covered


def zstd(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


WHOLE = zstd(bytes(64))
UNSIZED = zstd(bytes(64), write_content_size=False)
BOMB = zstd(bytes(64 * 1024**2))
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "zeros": lambda: bytes(64),
    "ordinary zstd": lambda: WHOLE,
    "gzip": lambda: zlib.compress(bytes(64)),
    "another magic number": lambda: hostile([(4, 64, WHOLE)], magic=0x184D2A50),
    "another name": lambda: hostile([(4, 64, WHOLE)], name=b"teaser\0\1"),
    "a later layout": lambda: hostile([(4, 64, WHOLE)], name=b"temper\0\2"),
    "width 0": lambda: hostile([(0, 64, WHOLE)]),
    "width 3": lambda: hostile([(3, 64, WHOLE)]),
    "width 255": lambda: hostile([(255, 64, WHOLE)]),
    "half an element": lambda: hostile([(8, 60, zstd(bytes(60))), (1, 4, zstd(bytes(4)))]),
    "no segment": lambda: hostile([]),
    "an empty segment": lambda: hostile([(4, 64, WHOLE), (4, 0, zstd(b""))]),
    "too few bytes": lambda: hostile([(4, 32, zstd(bytes(32)))]),
    "too many bytes": lambda: hostile([(4, 64, WHOLE), (4, 64, WHOLE)]),
    "a count beyond the file": lambda: hostile([(4, 64, WHOLE)], count=2**32 - 1),
    "a count beyond the table": lambda: hostile([(4, 64, WHOLE)], count=2),
    "a count below the table": lambda: hostile([(4, 64, WHOLE)], count=0),
    "a frame's length beyond the file": lambda: hostile([(4, 64, WHOLE)], length=2**31),
    "a segment beyond the file": lambda: hostile([(4, 64, WHOLE)], lengths=[2**32 - 1]),
    "a segment of no bytes": lambda: hostile([(4, 64, WHOLE)], lengths=[0]),
    "a bomb that says its size": lambda: hostile([(4, 64, BOMB)]),
    "a bomb with a table that agrees": lambda: hostile([(4, 64 * 1024**2, BOMB)]),
    "a frame without a size": lambda: hostile([(4, 64, UNSIZED)]),
    "a frame that is smaller": lambda: hostile([(4, 64, zstd(bytes(8)))]),
    "a frame that is no frame": lambda: hostile([(4, 64, b"x" * 20)]),
    "a frame that is cut": lambda: hostile([(4, 64, zstd(weights(64))[:-8])]),
    "two frames in one": lambda: hostile([(4, 64, WHOLE + WHOLE)]),
    "a frame and more": lambda: hostile([(4, 64, WHOLE + b"x")]),
    "a frame with a dictionary": lambda: hostile([(4, 64, with_dictionary())]),
}


def with_dictionary() -> bytes:
    samples = [weights(300, seed) for seed in range(60)]
    dictionary = zstandard.train_dictionary(2048, samples)
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0][:64])


def test_a_file_made_the_same_way_without_a_lie_opens() -> None:
    assert decompress(hostile([(4, 64, WHOLE)]), 64) == bytes(64)


def test_what_claims_to_be_larger_than_is_ever_compressed_is_refused() -> None:
    size_bytes = 2 * codec.LARGEST_BYTES
    frame = zstd(bytes(codec.SEGMENT_BYTES))
    packed = hostile([(4, codec.SEGMENT_BYTES, frame)] * (size_bytes // codec.SEGMENT_BYTES))
    with pytest.raises(CheckpointError, match=rf"compressed_size_too_large\(size={size_bytes}\)"):
        decompress(packed, size_bytes)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_costs_no_memory(name: str) -> None:
    packed = HOSTILE[name]()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            decompress(packed, 64)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(packed) + 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "compressed_truncated()"),
        ("another magic number", "not_a_compressed_object()"),
        ("another name", "not_a_compressed_object()"),
        ("a later layout", "unknown_compression_layout(layout=2, supported=1)"),
        ("width 3", "invalid_segment_size(size=64, width=3)"),
        ("half an element", "invalid_segment_size(size=60, width=8)"),
        ("an empty segment", "invalid_segment_size(size=0, width=4)"),
        ("a count below the table", "segment_table_length_mismatch()"),
        ("no segment", "compressed_size_mismatch(size=64)"),
        ("too few bytes", "compressed_size_mismatch(size=64)"),
        ("a segment of no bytes", "compressed_length_mismatch()"),
        ("a frame that is smaller", "segment_size_mismatch()"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(name: str, problem: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        decompress(HOSTILE[name](), 64)
    assert str(raised.value) == f"backup.{problem}"


def test_a_segment_is_no_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, is_refused in ((64, False), (63, True)):
        monkeypatch.setattr(codec, "SEGMENT_BYTES", limit)
        with pytest.raises(CheckpointError) if is_refused else contextlib.nullcontext():
            decompress(hostile([(4, 64, WHOLE)]), 64)


def test_random_changes_never_raise_anything_else() -> None:
    draw = random.Random(3)
    data = pack_of({"model/a": TensorBytes("F32", (60,), weights(240))})
    packed = compress(data)
    for _ in range(3000):
        damaged = bytearray(packed)
        for _ in range(draw.randrange(1, 6)):
            damaged[draw.randrange(16, len(damaged))] = draw.randrange(256)
        damaged[16:20] = zlib.crc32(damaged[20:]).to_bytes(4, "little")
        with contextlib.suppress(CheckpointError):
            assert len(decompress(damaged, len(data))) == len(data)


LARGE = {"model/large": TensorBytes("F32", (128, 128), weights(65536))}


def compressed_store(root: Path) -> tuple[Store, str, Path]:
    store = Store(root, compress=True)
    name = store.commit(LARGE, {}, step=1)
    (path,) = root.glob(f"objects/*/*{SUFFIX}")
    return store, name, path


def test_a_store_of_compressed_objects_has_the_same_manifests(tmp_path: Path) -> None:
    store, name, path = compressed_store(tmp_path / "a")
    other = Store(tmp_path / "b")
    other.commit(LARGE, {}, step=1)
    (pack,), (plain,) = (s.read(s.versions()[0]).packs for s in (store, other))
    assert pack == plain
    assert path.stat().st_size < pack.size_bytes
    assert bytes(dict(Store(tmp_path / "a").load(store.read(name)))["model/large"].data) == weights(
        65536
    )
    assert Store(tmp_path / "a").newest() == (name, [])


def test_what_does_not_shrink_is_stored_plain(tmp_path: Path) -> None:
    noise = {"model/a": TensorBytes("U8", (4096,), random.Random(1).randbytes(4096))}
    Store(tmp_path, compress=True).commit(noise, {}, step=1)
    assert [path.suffix for path in (tmp_path / "objects").rglob("*") if path.is_file()] == [""]


def test_what_is_very_large_is_stored_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LARGEST_BYTES", 65536)
    Store(tmp_path, compress=True).commit(LARGE, {}, step=1)
    assert list(tmp_path.glob(f"objects/*/*{SUFFIX}")) == []


def test_a_store_may_change_its_mind(tmp_path: Path) -> None:
    for step, compress_it in enumerate([True, False, True, True], start=1):
        store = Store(tmp_path, compress=compress_it)
        store.commit(tensors_at(step), {"step": step}, step=step)
        assert step_that_loads(store.operations, tmp_path) == step
    assert store.newest()[1] == []


def test_what_is_there_in_one_form_is_not_written_in_the_other(tmp_path: Path) -> None:
    _, _, path = compressed_store(tmp_path)
    Store(tmp_path).commit(LARGE, {}, step=2)
    assert [file for file in (tmp_path / "objects").rglob("*") if file.is_file()] == [path]


def test_a_damaged_compressed_object_is_named_and_written_again(tmp_path: Path) -> None:
    store, name, path = compressed_store(tmp_path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100] + b"!" + whole[101:], b"", bytes(70000)):
        path.write_bytes(damaged)
        with pytest.raises(
            CheckpointError, match=rf"^backup\.object_problem\(hash={path.name[:12]}, "
        ):
            Store(tmp_path).verify(store.read(name))
        again = Store(tmp_path, compress=True)
        assert again.newest()[0] is None
        again.commit(LARGE, {}, step=2)
        assert path.read_bytes() == whole
        store, name = again, again.versions()[0]


def test_a_compressed_object_of_other_bytes_is_refused(tmp_path: Path) -> None:
    store, name, path = compressed_store(tmp_path)
    (pack,) = store.read(name).packs
    path.write_bytes(compress(bytes(pack.size_bytes)))
    with pytest.raises(CheckpointError, match=r"backup\.object_bytes_changed"):
        store.verify(store.read(name))


def test_a_compressed_object_that_saves_nothing_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    noise = {"model/a": TensorBytes("U8", (4096,), random.Random(1).randbytes(4096))}
    name = store.commit(noise, {}, step=1)
    (pack,) = store.read(name).packs
    plain = store.objects.path_of(pack.hash)
    packed = compress(plain.read_bytes())
    assert len(packed) >= pack.size_bytes
    store.objects.compressed_path_of(pack.hash).write_bytes(packed)
    plain.unlink()
    sizes = rf"\(size={len(packed)}, plain_size={pack.size_bytes}\)"
    with pytest.raises(CheckpointError, match=rf"backup\.compressed_not_smaller{sizes}"):
        store.verify(store.read(name))


def test_of_two_forms_the_whole_one_serves(tmp_path: Path) -> None:
    store, name, path = compressed_store(tmp_path)
    plain = path.with_suffix("")
    plain.write_bytes(b"damaged")
    store.verify(store.read(name))
    (pack,) = store.read(name).packs
    assert hash_of("blake3", [store.objects.read(pack, "blake3")]) == pack.hash
    plain.write_bytes(store.objects.read(pack, "blake3"))
    path.write_bytes(b"damaged")
    store.verify(store.read(name))


def test_compressed_objects_that_nothing_names_go_and_others_stay(tmp_path: Path) -> None:
    store, first, path = compressed_store(tmp_path)
    other = {"model/large": TensorBytes("F32", (128, 128), weights(65536, seed=1))}
    second = store.commit(other, {}, step=2)
    store.remove_all_but([first, second])
    assert path.exists()
    store.remove_all_but([second])
    assert not path.exists()
    assert Store(tmp_path).newest() == (second, [])


def test_an_object_that_was_compressed_wrongly_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "compress", lambda data: compress(bytes(len(data))))
    with pytest.raises(StorageError, match=r"backup\.compression_corrupted_object"):
        Store(tmp_path, compress=True).commit(LARGE, {}, step=1)
    assert Store(tmp_path).versions() == []


def test_an_object_that_vanishes_later_is_no_longer_whole(tmp_path: Path) -> None:
    store, name, path = compressed_store(tmp_path)
    (pack,) = store.read(name).packs
    assert store.objects.is_whole(pack, "blake3")
    path.unlink()
    assert not store.objects.is_whole(pack, "blake3")
    assert not store.objects.is_whole(Pack("0" * 64, 10), "blake3")


def test_opening_needs_little_more_memory_than_what_comes_out() -> None:
    data = pack_of({"model/a": TensorBytes("F32", (8 * 1024**2,), weights(32 * 1024**2))})
    packed = compress(data)
    tracemalloc.start()
    try:
        assert decompress(packed, len(data)) == data
        assert tracemalloc.get_traced_memory()[1] < len(data) + 2.1 * codec.SEGMENT_BYTES
    finally:
        tracemalloc.stop()
