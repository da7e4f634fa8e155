"""The hashes that names consist of are those of their standards."""

import sys

import pytest

from infrastructure.backup.format.hashing import HEX_HASH, available_hash, hash_of, new_digest

OF_ABC = {
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "blake3": "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
}


@pytest.mark.parametrize("name", OF_ABC)
def test_pieces_are_hashed_as_one(name: str) -> None:
    assert hash_of(name, [b"a", b"", bytearray(b"b"), memoryview(b"c")]) == OF_ABC[name]
    digest = new_digest(name)
    digest.update(b"abc")
    assert digest.hexdigest() == OF_ABC[name]


def test_a_hash_that_cannot_be_computed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_hash() == "blake3"
    with pytest.raises(ValueError, match=r"^backup\.unknown_hash\(hash_name=md5\)$"):
        new_digest("md5")
    monkeypatch.setitem(sys.modules, "blake3", None)
    assert available_hash() == "sha256"
    with pytest.raises(ValueError, match=r"^backup\.blake3_missing\(\)$"):
        hash_of("blake3", [b"abc"])


@pytest.mark.parametrize(
    ("text", "is_hash"),
    [("0a" * 32, True), ("0a" * 31, False), ("0a" * 33, False), ("0A" * 32, False)],
)
def test_a_name_of_an_object_is_64_lower_case_digits(text: str, is_hash: bool) -> None:
    assert bool(HEX_HASH.fullmatch(text)) is is_hash
