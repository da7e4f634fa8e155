"""Checkpoints that several ranks wrote in chunks. Of several processes: test_checkpoint_storage."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import as_bytes
from infrastructure.training.checkpoints.chunked_version import (
    KEY,
    TensorChunk,
    chunk_name,
    decode_value,
    described_tensors,
    is_chunked,
    load_whole,
    pieces_of,
    tensors_of,
)

WHOLE = torch.arange(24.0).reshape(2, 4, 3)
CHUNKS = [((0, 0, 0), (2, 1, 3)), ((0, 1, 0), (1, 3, 3)), ((1, 1, 0), (1, 3, 3))]


def described(size: list[int], chunks: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"tensors": {"model.a.b": {"dtype": dtype, "size": size, "chunks": chunks}}}


def written(folder: Path, values: dict[str, Any]) -> tuple[Store, Manifest]:
    """A tensor in three chunks, one that is whole, a value and a file of the run."""
    store = Store(folder)
    chunks = {
        chunk_name("model.a.b", offsets): TensorChunk(offsets, sizes).of(WHOLE).contiguous()
        for offsets, sizes in CHUNKS
    }
    stored = as_bytes({**chunks, "random/torch": torch.ones(5)})
    stored["values/loop.pair"] = TensorBytes("U8", (26,), b'{"__tuple__": [1, [2, 3]]}')
    stored["files/run.json"] = TensorBytes("U8", (2,), b"{}")
    return store, store.read(store.commit(stored, {"step": 3, **values}, step=3))


def test_chunks_are_named_by_where_they_begin() -> None:
    assert chunk_name("model.a.b", (0, 64)) == "model/a.b@0,64"
    assert chunk_name("model.a", ()) == "model/a@"


def test_chunks_become_the_tensor_that_they_are_of(tmp_path: Path) -> None:
    store, manifest = written(tmp_path, {KEY: described([2, 4, 3], CHUNKS)})
    assert is_chunked(manifest)
    pieces = {(p.group, p.name, p.chunk.offsets): p for p in pieces_of(store, manifest)}
    assert pieces.keys() == {
        *(("model", "a.b", offsets) for offsets, _ in CHUNKS),
        ("random", "torch", (0,)),
    }
    for (_, name, _), piece in pieces.items():
        of = WHOLE if name == "a.b" else torch.ones(5)
        assert piece.size == tuple(of.shape)
        assert torch.equal(piece.content, piece.chunk.of(of))
    whole = tensors_of(store, manifest)
    assert {group: [*members] for group, members in whole.items()} == {
        "model": ["a.b"],
        "random": ["torch"],
    }
    assert torch.equal(whole["model"]["a.b"], WHOLE)
    everything = load_whole(store, manifest)
    assert everything.keys() == {"model.a.b", "random.torch", "loop.pair"}
    assert everything["loop.pair"] == (1, [2, 3])


def test_a_checkpoint_of_one_process_has_any_group(tmp_path: Path) -> None:
    store, manifest = written(tmp_path, {})
    assert not is_chunked(manifest)
    groups = tensors_of(store, manifest)
    assert groups.keys() == {"model", "random", "values"}
    assert len(groups["model"]) == 3
    with pytest.raises(CheckpointError, match=r"run\.checkpoint_not_sharded"):
        load_whole(store, manifest)


def test_a_description_may_claim_what_is_stored_and_no_more(tmp_path: Path) -> None:
    _, manifest = written(tmp_path, {})
    stored_bytes = sum(pack.size_bytes for pack in manifest.packs)

    def claiming(**about: Any) -> Manifest:
        return replace(manifest, values={KEY: described(**about)})

    size = [stored_bytes]
    (found,) = described_tensors(claiming(size=size, chunks=[[[0], size]], dtype="U8")).values()
    assert (found.size, found.dtype, found.chunks) == (
        (stored_bytes,),
        torch.uint8,
        (TensorChunk((0,), (stored_bytes,)),),
    )
    for size, dtype, size_bytes in (
        ([stored_bytes + 1], "U8", stored_bytes + 1),
        ([stored_bytes], "F64", 8 * stored_bytes),
        ([(1 << 48) - 1], "U8", (1 << 48) - 1),
    ):
        claims = rf"manifest_claims_too_many_bytes\(key=distributed, size={size_bytes}\)"
        with pytest.raises(CheckpointError, match=claims):
            described_tensors(claiming(size=size, chunks=[[[0], size]], dtype=dtype))
    for size, chunks, code in (
        ([2, 2], [[[0, 1], [2, 2]]], r"chunk_exceeds_tensor\(ends=\[2, 3\], shape=\[2, 2\]\)"),
        ([2, 3], [[[0, 0], [2, 2]]], r"chunks_do_not_fill_tensor\(shape=\[2, 3\]\)"),
        ([2, 2], [[[0], [2]]], r"zip\(\)"),
        ([2.0], [[[0], [2]]], r"invalid_chunk_lengths\(values=\[2\.0\]\)"),
        ([2], [[[-1], [2]]], r"invalid_chunk_lengths\(values=\[-1\]\)"),
        ([2], [[[0], [1 << 48]]], "invalid_chunk_lengths"),
    ):
        with pytest.raises(CheckpointError, match=rf"invalid_manifest_entry\(.*{code}"):
            described_tensors(claiming(size=size, chunks=chunks))
    with pytest.raises(CheckpointError, match=r"invalid_manifest_entry\(.*error='F33'"):
        described_tensors(claiming(size=[1], chunks=[[[0], [1]]], dtype="F33"))
    assert described_tensors(claiming(size=[0], chunks=[]))["model.a.b"].chunks == ()


def test_a_chunk_that_is_lacking_is_named(tmp_path: Path) -> None:
    lacking = [*CHUNKS[:1], ((0, 1, 0), (2, 3, 3))]
    store, manifest = written(tmp_path, {KEY: described([2, 4, 3], lacking)})
    del manifest.tensors["model/a.b@0,1,0"]
    with pytest.raises(
        CheckpointError, match=r"run\.checkpoint_lacks_parts\(count=1, example=model/a\.b@0,1,0\)"
    ):
        tensors_of(store, manifest)


@pytest.mark.parametrize("data", [b"{", b"\xff", b'{"__tuple__": 3}'])
def test_a_value_that_cannot_be_decoded_is_damage(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"run\.checkpoint_value_not_json\(error=.+\)"):
        decode_value(data)
