from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.yaml_source import read_yaml


def read(tmp_path: Path, text: str | bytes) -> tuple[dict[Any, Any], dict[str, int]]:
    path = tmp_path / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def laughing(line: str, first: str = "1") -> str:
    """Each line names the one before again and again: some 2^30 values in a kilobyte."""
    lines = [line.replace("NEW", f"a{n + 1}").replace("OLD", f"*a{n}") for n in range(30)]
    return "\n".join([f"a0: &a0 {first}", *lines]) + "\n"


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


def test_anchors_are_followed(tmp_path: Path) -> None:
    values, _ = read(tmp_path, "a: &x {b: 1}\nc: *x\n")
    assert values == {"a": {"b": 1}, "c": {"b": 1}}


def test_merge_keys_add_what_is_not_given_here(tmp_path: Path) -> None:
    text = "base: &b\n  x: 1\n  deep:\n    y: 2\nc:\n  <<: *b\n  x: 3\n"
    values, lines = read(tmp_path, text)
    assert values["c"] == {"x": 3, "deep": {"y": 2}}
    assert (lines["c.x"], lines["c.deep.y"]) == (7, 4)
    _, lines = read(tmp_path, "base: &b\n  x: 1\n  xy: 2\nc:\n  <<: *b\n  xy: 3\n")
    assert (lines["c.x"], lines["c.xy"]) == (2, 6)
    assert "<<" not in str(values)


def test_of_several_merged_mappings_the_first_holds(tmp_path: Path) -> None:
    text = "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b], z: 3}\nd: {'<<': 4}\n"
    values, _ = read(tmp_path, text)
    assert values["c"] == {"x": 1, "y": 2, "z": 3}
    assert values["d"] == {"<<": 4}


def test_a_section_may_take_its_keys_from_another(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "optimization: &shared\n  learning_rate: 1e-3\ntraining:\n  <<: *shared\n  seed: 5\n"
    )
    config = load_config(tmp_path / "a.yaml", environment={})
    assert (config.training.learning_rate, config.training.seed) == (1e-3, 5)


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
        ("a: &x\n  b: *x\n", "config.yaml_recursive_anchor(path=a.yaml, line=1)"),
        ("a: 1\nb:\n  <<: 4\n", "config.yaml_invalid_merge(path=a.yaml, line=3)"),
        ("\nb: &b\n  <<: *b\n", "config.yaml_recursive_anchor(path=a.yaml, line=2)"),
        ("b: &b [1, *b]\n", "config.yaml_recursive_anchor(path=a.yaml, line=1)"),
        ("a: " + "[" * 5000, "config.yaml_too_deep(location=a.yaml, max_depth=50)"),
        ("a: " + "[" * 60 + "]" * 60, "config.yaml_too_deep(location=a.yaml:1, max_depth=50)"),
        ("a: " + "{a: " * 5000, "config.yaml_too_deep(location=a.yaml, max_depth=50)"),
        ("a: " + "9" * 5000, "config.yaml_invalid(place=a.yaml:1, reason=config.number_too_long()"),
        (
            laughing("NEW: &NEW [OLD, OLD, OLD]"),
            "config.yaml_too_many_values(path=a.yaml, line=9, max_values=5000)",
        ),
        (laughing("NEW: &NEW {a: OLD, b: OLD}"), "config.yaml_too_many_values(path=a.yaml, line="),
        (
            laughing("NEW: &NEW {<<: [OLD, OLD]}", "{x: 1}"),
            "config.yaml_too_many_values(path=a.yaml, line=",
        ),
        (
            "#" * (256 << 10) + "\n",
            "config.yaml_file_too_large(path=a.yaml, max_kib=256)",
        ),
        ("a: *nowhere\n", "config.yaml_invalid(place=a.yaml:1, reason=found undefined alias"),
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


ALIASED = "a: &a " + "[" * 20 + "]" * 20 + "\nb: "


@pytest.mark.parametrize(
    ("largest", "too_large"),
    [
        ("#" * ((256 << 10) - 1) + "\n", "#" * (256 << 10) + "\n"),
        ("a: " + "[" * 49 + "]" * 49, "a: " + "[" * 50 + "]" * 50),
        ("a: " + "[" * 48 + "1" + "]" * 48, "a: " + "[" * 49 + "1" + "]" * 49),
        (ALIASED + "[" * 29 + "*a" + "]" * 29, ALIASED + "[" * 30 + "*a" + "]" * 30),
        ("a: [" + "1," * 4997 + "]", "a: [" + "1," * 4998 + "]"),
        ("a: &x [" + "1," * 2494 + "]\nb: *x", "a: &x [" + "1," * 2499 + "]\nb: *x"),
    ],
)
def test_a_file_is_read_up_to_its_bounds(largest: str, too_large: str, tmp_path: Path) -> None:
    read(tmp_path, largest)
    with pytest.raises(ValueError, match=r"config\.yaml_(file_too_large|too_(deep|many_values))\("):
        read(tmp_path, too_large)


def test_an_anchor_may_be_used_twice_beside_itself(tmp_path: Path) -> None:
    values, lines = read(tmp_path, "x: &x [1]\na: [*x, *x]\nb:\n  c: *x\n1.5: {true: 2}\n")
    assert values == {"x": [1], "a": [[1], [1]], "b": {"c": [1]}, 1.5: {True: 2}}
    assert lines == {"x": 1, "a": 2, "b": 3, "b.c": 4, "1.5": 5, "1.5.True": 5}
