from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.yaml_source import read_yaml


def read(tmp_path: Path, text: str | bytes) -> tuple[dict[Any, Any], dict[str, int]]:
    path = tmp_path / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("4e-5", 4e-5),
        ("5.0e-5", 5e-5),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("-1.5", -1.5),
        ("32", 32),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        *(("-.inf", -float("inf")), ("+.INF", float("inf")), ("+7", 7), ("1.e3", 1000.0)),
        *(("NULL", None), ("Null", None), ("TRUE", True), ("FALSE", False)),
        *((text, text) for text in ("0o8", "0xg", "1e", "e5", "tRUE", "nULL", "inf", "1.2.3")),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("off", "off"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-11-20", "2026-11-20"),
        ("0,1", "0,1"),
        ("4bit", "4bit"),
        ("90%", "90%"),
        ("'32'", "32"),
        ("[a, 1]", ["a", 1]),
        ("{0: 0.15, 5: 0.5}", {0: 0.15, 5: 0.5}),
    ],
)
def test_scalars_are_what_everybody_reads(text: str, value: object, tmp_path: Path) -> None:
    values, _ = read(tmp_path, f"key: {text}\n")
    assert values == {"key": value}
    assert type(values["key"]) is type(value)


def test_lines_of_nested_keys(tmp_path: Path) -> None:
    _, lines = read(tmp_path, "# first\na:\n  b: 1\n\n  c: {d: 2}\n")
    assert lines == {"a": 2, "a.b": 3, "a.c": 5, "a.c.d": 5}


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == ({}, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "yaml_duplicate_key(path=a.yaml, line=3, key=a, other_line=1)"),
        ("t:\n  a: 1\n  a: 1\n", "yaml_duplicate_key(path=a.yaml, line=3, key=t.a, other_line=2)"),
        ("- a\n- b\n", "config.yaml_not_a_mapping(path=a.yaml, line=1)"),
        ("just words\n", "config.yaml_not_a_mapping(path=a.yaml, line=1)"),
        ("a: [1,\nb: 2\n", "config.yaml_invalid(place=a.yaml:3, reason="),
        ("a: 1\n\tb: 2\n", "config.yaml_invalid(place=a.yaml:2, reason="),
        ("a: 'x\n", "config.yaml_invalid(place=a.yaml"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "config.yaml_invalid(place=a.yaml:1, reason=could not",
        ),
        ("a: &x {b: 1}\nc: *x\n", "config.yaml_invalid(place=a.yaml:2, reason=config.yaml_alias()"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "yaml_invalid(place=a.yaml:3, reason=config.yaml_alias()"),
        ("a: [1, *nowhere]\n", "config.yaml_invalid(place=a.yaml:1, reason=config.yaml_alias()"),
        ("a: " + "[" * 5000, "place=a.yaml:1, reason=config.yaml_too_deep(max_depth=50)"),
        ("a: " + "[" * 60 + "]" * 60, "place=a.yaml:1, reason=config.yaml_too_deep(max_depth=50)"),
        ("a: " + "{a: " * 5000, "place=a.yaml:1, reason=config.yaml_too_deep(max_depth=50)"),
        ("a: " + "9" * 5000, "config.yaml_invalid(place=a.yaml:1, reason=config.number_too_long()"),
        (
            "#" * (256 << 10) + "\n",
            "config.yaml_file_too_large(path=a.yaml, max_kib=256)",
        ),
        ("a: 1\n? [a, b]\n: 1\n", "yaml_invalid_key(path=a.yaml, line=2, key=['a', 'b'])"),
        ("null: 1\n", "yaml_invalid_key(path=a.yaml, line=1, key=None)"),
        (
            "a: 1\n---\nb: 2\n",
            "config.yaml_invalid(place=a.yaml:2, reason=but found another document",
        ),
        (b"a: \xff\xfe\n", "config.file_not_utf8(path=a.yaml, offset=3)"),
        ("a: \x00\n", "config.yaml_invalid(place=a.yaml"),
    ],
)
def test_a_broken_file_is_one_sentence_with_its_place(
    text: str | bytes, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"a.yaml") as raised:
        read(tmp_path, text)
    assert sentence in str(raised.value).replace(f"{tmp_path}/", "")
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.file_not_found\(path=.*/nowhere\.yaml\)"):
        load_config(tmp_path / "nowhere.yaml", environment={})
    unreadable = rf"config\.file_unreadable\(path={tmp_path}, reason=Is a directory\)"
    with pytest.raises(ValueError, match=unreadable):
        load_config(tmp_path, environment={})


@pytest.mark.parametrize(
    ("largest", "too_large"),
    [
        ("#" * ((256 << 10) - 1) + "\n", "#" * (256 << 10) + "\n"),
        ("a: " + "[" * 49 + "]" * 49, "a: " + "[" * 50 + "]" * 50),
        ("a: " + "[" * 48 + "1" + "]" * 48, "a: " + "[" * 49 + "1" + "]" * 49),
    ],
)
def test_a_file_is_read_up_to_its_bounds(largest: str, too_large: str, tmp_path: Path) -> None:
    read(tmp_path, largest)
    with pytest.raises(ValueError, match=r"config\.yaml_(file_too_large|too_deep)\("):
        read(tmp_path, too_large)


def test_keys_may_be_numbers(tmp_path: Path) -> None:
    values, lines = read(tmp_path, "a: [1]\nb:\n  c: 2\n1.5: {true: 2}\n")
    assert values == {"a": [1], "b": {"c": 2}, 1.5: {True: 2}}
    assert lines == {"a": 1, "b": 2, "b.c": 3, "1.5": 4, "1.5.True": 4}
