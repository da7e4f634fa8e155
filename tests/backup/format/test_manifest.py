"""A manifest is hostile input: it may come from a shared folder."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from infrastructure.backup.format.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    Pack,
    StoredTensor,
    VersionName,
    parse_manifest,
    scores_of,
)
from infrastructure.core.errors import CheckpointError

HASH = "0123456789abcdef" * 4
NAME = VersionName(7, "blake3", HASH)
MANIFEST = Manifest(
    hash_name="blake3",
    sequence=7,
    parent=None,
    created="2026-11-20T12:00:00+0000",
    kind="scheduled",
    healthy=True,
    step=120,
    score=1.25,
    values={"position": {"epoch": 1}, "name": "Überlauf"},
    packs=(Pack(HASH, 1000), Pack(HASH[::-1], 2000)),
    tensors={"model/a": StoredTensor(0, HASH), "small/b": StoredTensor(1, HASH)},
)
GOOD = json.loads(MANIFEST.to_bytes())


def test_there_and_back() -> None:
    assert parse_manifest(MANIFEST.to_bytes(), NAME) == MANIFEST


def test_the_bytes_are_canonical() -> None:
    data = MANIFEST.to_bytes()
    assert data.isascii()
    assert b" " not in data.replace(b"2026-11-20T12:00:00+0000", b"")
    reordered = replace(MANIFEST, tensors=dict(reversed(MANIFEST.tensors.items())))
    assert reordered.to_bytes() == data


def test_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(MANIFEST, values={"loss": float("nan")}).to_bytes()


@pytest.mark.parametrize(
    "text", ["", "7-blake3-" + HASH, f"{NAME}x", f"../{NAME}", str(NAME).upper(), f"{NAME}/x"]
)
def test_what_is_no_name(text: str) -> None:
    assert VersionName.parse(text) is None


def test_the_time_of_a_version_is_read_with_its_zone() -> None:
    assert MANIFEST.created_at() == replace(
        MANIFEST, created="2026-11-20T14:00:00+0200"
    ).created_at(5.0)
    assert MANIFEST.created_at() == 1795176000.0
    assert replace(MANIFEST, created="yesterday").created_at() is None
    assert replace(MANIFEST, created="yesterday").created_at(5.0) == 5.0


def test_names_sort_by_age() -> None:
    names = [VersionName(n, "blake3", HASH) for n in (2, 10, 999_999_999_999)]
    assert sorted(map(str, names)) == list(map(str, names))
    assert VersionName.parse(str(NAME)) == NAME


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != field}


def with_value(field: str, value: Any) -> dict[str, Any]:
    return {**GOOD, field: value}


HOSTILE: list[Any] = [
    *map(without, GOOD),
    *([], None, 7, "text", {}, [GOOD]),
    *(with_value("format", value) for value in (0, 2, "1", None, 1.5, [1])),
    *(with_value("sequence", value) for value in (8, -1, "7", True, 7.0)),
    *(with_value("step", value) for value in (-1, "1", True, 1e300, None)),
    *(with_value("score", value) for value in ("1", True, [], math.nan, math.inf)),
    *(with_value("kind", value) for value in ("unheard-of", 1, None)),
    *(with_value("healthy", value) for value in (1, "yes", None)),
    *(with_value("parent", value) for value in (1, [], {})),
    *(with_value("values", value) for value in ([], "x", None)),
    with_value("packs", {}),
    *(with_value("tensors", {"model/a": place}) for place in ([2, HASH], [-1, HASH], [0], 0, {})),
    *(with_value("tensors", {"a": [index, HASH]}) for index in (True, "0", 0.0, None)),
    with_value("tensors", {"a": [0, "x"]}),
    with_value("tensors", []),
]


@pytest.mark.parametrize("contents", HOSTILE)
def test_what_cannot_be_is_refused(contents: Any) -> None:
    with pytest.raises(CheckpointError, match="manifest"):
        parse_manifest(json.dumps(contents).encode(), NAME)


PACKS: list[Any] = [
    [],
    ["../../etc/passwd", 10],
    *([HASH, size] for size in (-1, 1 << 40, 1 << 41, "9", 1.5, True, None)),
    *([name, 10] for name in (HASH.upper(), HASH[1:], HASH + "\n", 3)),
    [HASH, 10, "more"],
]


@pytest.mark.parametrize("pack", PACKS)
def test_a_pack_that_cannot_be_is_refused(pack: Any) -> None:
    contents = with_value("packs", [[HASH, 10], pack])
    with pytest.raises(CheckpointError, match=r"backup\.manifest_invalid_pack"):
        parse_manifest(json.dumps(contents).encode(), NAME)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ([], "manifest_not_an_object()"),
        (with_value("format", 2), "unknown_manifest_format(version=2, supported=1)"),
        (without("step"), "invalid_manifest_field(field=step)"),
        (with_value("healthy", 1), "invalid_manifest_field(field=healthy)"),
        (with_value("score", True), "invalid_manifest_field(field=score)"),
        (with_value("sequence", 8), "manifest_sequence_mismatch(sequence=8)"),
        (with_value("kind", "x"), "invalid_manifest_kind_or_step()"),
        (with_value("packs", [[HASH]]), "manifest_invalid_pack()"),
        (
            with_value("tensors", {f"{'a' * 79}bc": [2, HASH]}),
            f"manifest_tensor_without_pack(name={'a' * 79}b)",
        ),
        (
            with_value("score", math.nan),
            "manifest_not_json(error=backup.json_constant_not_allowed(constant=NaN))",
        ),
    ],
)
def test_what_is_refused_is_named(contents: Any, problem: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        parse_manifest(json.dumps(contents).encode(), NAME)
    assert str(raised.value) == f"backup.{problem}"


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) + len(PACKS) >= 40


@pytest.mark.parametrize("size_bytes", [0, (1 << 40) - 1])
def test_a_pack_of_any_real_size_and_a_version_of_the_first_step(size_bytes: int) -> None:
    manifest = replace(MANIFEST, step=0, packs=(MANIFEST.packs[0], Pack(HASH[::-1], size_bytes)))
    assert parse_manifest(manifest.to_bytes(), NAME) == manifest


def test_what_a_training_goes_on_from_is_all_but_its_run_files() -> None:
    packs = tuple(Pack(HASH, number) for number in range(4))
    places = {"model/a": 3, "files/model": 0, "random/x": 1, "files/b": 1, "filesystem/c": 3}
    tensors = {name: StoredTensor(number, HASH) for name, number in places.items()}
    manifest = replace(MANIFEST, packs=packs, tensors=tensors)
    assert manifest.needed_packs == (packs[1], packs[3])


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"{", b"[" * 200_000, b'{"a":' * 100_000, b"\0" * 100, b"NaN"],
    ids=["empty", "no text", "cut", "deep list", "deep object", "zeros", "nan"],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"backup\.manifest_not_json"):
        parse_manifest(data, NAME)


def test_what_is_too_large_is_not_even_parsed() -> None:
    with pytest.raises(CheckpointError, match=r"backup\.manifest_not_json"):
        parse_manifest(b" " * MAX_MANIFEST_BYTES, NAME)
    size = rf"\(size={MAX_MANIFEST_BYTES + 1}\)"
    with pytest.raises(CheckpointError, match=rf"backup\.manifest_too_large{size}"):
        parse_manifest(b" " * (MAX_MANIFEST_BYTES + 1), NAME)


@pytest.mark.parametrize(
    ("values", "rows", "apart"),
    [
        ({}, None, set()),
        (
            {"measured_on": "abc", "copied_apart": [HASH, "x", 3, HASH[::-1]]},
            "abc",
            {HASH, HASH[::-1]},
        ),
        ({"measured_on": 3, "copied_apart": HASH}, None, set()),
    ],
)
def test_the_values_describe_a_version(
    values: dict[str, Any], rows: str | None, apart: set[str]
) -> None:
    manifest = replace(MANIFEST, values=values)
    assert (manifest.measured_on, manifest.copied_apart) == (rows, apart)
    outline = manifest.outline
    for name in ("hash_name", "kind", "healthy", "step", "score", "packs", "needed_packs"):
        assert getattr(outline, name) == getattr(manifest, name)
    assert outline.measured_on == rows


def test_scores_are_compared_on_the_rows_of_the_newest_one() -> None:
    def scored(score: float | None, rows: str | None, *, healthy: bool = True) -> Manifest:
        values = {} if rows is None else {"measured_on": rows}
        return replace(MANIFEST, score=score, values=values, healthy=healthy)

    versions = {
        "1": scored(0.1, "old"),
        "2": scored(0.5, "new"),
        "3": scored(None, "new"),
        "4": scored(0.4, "new"),
        "5": scored(0.0, "other", healthy=False),
        "6": scored(None, None),
    }
    assert scores_of(versions) == {"2": 0.5, "4": 0.4}
    assert scores_of({name: one.outline for name, one in versions.items()}) == {"2": 0.5, "4": 0.4}
    assert scores_of({"1": scored(0.1, None), "2": scored(0.3, None)}) == {"1": 0.1, "2": 0.3}
    assert scores_of({"3": versions["3"], "5": versions["5"]}) == {}
