"""Which files of a folder are trained on, held out or left alone, by names and by cards."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infrastructure.data.readers.splits import (
    Parts,
    is_no_data,
    named,
    parts_of,
    saved_splits,
)


def parts(folder: Path, names: list[str], card: object = None) -> Parts:
    """What becomes of files of these names, with a card that begins with `card`."""
    if card is not None:
        matter = card if isinstance(card, str) else yaml.safe_dump(card)
        (folder / "README.md").write_text(f"---\n{matter}---\n# A data set\n")
    files = [folder / name for name in names]
    return parts_of(folder, files, lambda path: path.name.partition(".jsonl")[0])


def shown(folder: Path, found: Parts) -> tuple[list[str], ...]:
    divided = (found.train, found.held_out, found.test)
    return tuple([path.relative_to(folder).as_posix() for path in paths] for paths in divided)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        *[
            (f"{name}.jsonl", number)
            for number, names in enumerate(
                (
                    ("train", "training", "TRAIN", "data-train", "train_split", "train.part-3"),
                    ("validation", "valid", "val", "dev", "eval", "evaluation", "dev set", "val2"),
                    ("test", "testing", "test-00000-of-00001", "test1-0a1b", "shard-1.test"),
                )
            )
            for name in names
        ],
        ("dev/train.jsonl", 0),  # the name before the folder
        ("test/train/a.jsonl", 0),  # the nearest folder
        ("train/test/a.jsonl", 2),
        ("val/2024/x.jsonl", 1),
        ("x_dev.jsonl", 1),
        ("dev_x.jsonl", 1),
        ("test_dev.jsonl", 1),
        ("x_dev_y.jsonl", 0),
        ("contest.jsonl", 0),
        ("7.jsonl", 0),
        ("data.jsonl", 0),
    ],
)
def test_a_name_decides_the_split_of_a_file(tmp_path: Path, names: str, expected: int) -> None:
    """Beside a file to train on and ones of each other split."""
    others = ["a/train.jsonl", "b/val.jsonl", "c/test.jsonl"]
    found = shown(tmp_path, parts(tmp_path, [*others, names]))
    assert found == tuple(
        [other] + [names] * (number == expected) for number, other in enumerate(others)
    )


HELD_OUT = "data.held_out_names_trained(files_are={})"
NOT_LISTED = "data.file_not_in_card"


@pytest.mark.parametrize(
    ("names", "expected", "notes"),
    [
        # Only a name as a whole divides files of which none is called one to train on.
        (["a.jsonl", "test.jsonl"], (["a.jsonl"], [], ["test.jsonl"]), []),
        (
            ["a.jsonl", "x_test.jsonl"],
            (["a.jsonl", "x_test.jsonl"], [], []),
            [HELD_OUT.format("data.files_is(files=x_test.jsonl)")],
        ),
        (["test.jsonl", "x_test.jsonl"], (["x_test.jsonl"], [], ["test.jsonl"]), []),
        (["val.jsonl", "x_test.jsonl"], (["x_test.jsonl"], ["val.jsonl"], []), []),
        (
            ["x_val.jsonl", "x_test.jsonl"],
            (["x_val.jsonl", "x_test.jsonl"], [], []),
            [HELD_OUT.format("data.files_are(files=x_val.jsonl, x_test.jsonl)")],
        ),
        (["a_test.jsonl", "b_test.jsonl"], (["a_test.jsonl", "b_test.jsonl"], [], []), []),
        (
            ["val.jsonl", "test.jsonl"],
            (["val.jsonl", "test.jsonl"], [], []),
            [HELD_OUT.format("data.files_are(files=val.jsonl, test.jsonl)")],
        ),
        (["train.jsonl", "b.jsonl"], (["train.jsonl", "b.jsonl"], [], []), []),
        (
            ["x_train.jsonl", "b.jsonl", "x_val.jsonl"],
            (["x_train.jsonl", "b.jsonl"], ["x_val.jsonl"], []),
            ["data.file_without_split_name(files_are=data.files_is(files=b.jsonl))"],
        ),
        (["x_train.jsonl", "val.jsonl"], (["x_train.jsonl"], ["val.jsonl"], []), []),
        # A name of numbers and hashes is its first word.
        (
            ["a.jsonl", "test1-0a1b-2c.jsonl", "val3.jsonl"],
            (["a.jsonl"], ["val3.jsonl"], ["test1-0a1b-2c.jsonl"]),
            [],
        ),
    ],
)
def test_names_divide_files_where_one_is_left_to_train_on(
    tmp_path: Path, names: list[str], expected: tuple[list[str], ...], notes: list[str]
) -> None:
    found = parts(tmp_path, names)
    assert shown(tmp_path, found) == expected
    assert list(found.notes) == notes


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("a", "files_is(files=a)"),
        ("ab", "files_are(files=a, b)"),
        ("abc", "files_are(files=a, b, c)"),
        ("abcd", "more_files_are(files=a, b, c, count=1)"),
        ("abcde", "more_files_are(files=a, b, c, count=2)"),
    ],
)
def test_of_many_names_three_are_shown(names: str, words: str) -> None:
    assert named([*names]) == f"data.{words}"


FILES = ["a/1.jsonl", "a/2.jsonl", "a/b/3.jsonl", "c/1.jsonl", "c/x.jsonl"]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("a/*.jsonl", (["a/1.jsonl", "a/2.jsonl"], [], [])),
        ("./a/*", (["a/1.jsonl", "a/2.jsonl"], [], [])),
        ("a/?.jsonl", (["a/1.jsonl", "a/2.jsonl"], [], [])),
        ("a/**", (["a/1.jsonl", "a/2.jsonl", "a/b/3.jsonl"], [], [])),
        ("**/1.jsonl", (["a/1.jsonl", "c/1.jsonl"], [], [])),
        ("a/**/3.jsonl", (["a/b/3.jsonl"], [], [])),
        ("a/1.*", (["a/1.jsonl"], [], [])),
        (["a/2.jsonl", "a/*", 3], (["a/2.jsonl", "a/1.jsonl"], [], [])),  # each once
        ({"train": "a/1.jsonl", "Dev": ["c/1.jsonl"]}, (["a/1.jsonl"], ["c/1.jsonl"], [])),
        (
            [{"path": "a/1.jsonl"}, {"split": "test", "path": ["c/*", 1]}, {"split": "dev"}, 4],
            (["a/1.jsonl"], [], ["c/1.jsonl", "c/x.jsonl"]),
        ),
    ],
)
def test_a_card_lists_patterns_of_files(
    tmp_path: Path, listed: object, expected: tuple[list[str], ...]
) -> None:
    found = parts(tmp_path, FILES, {"configs": [{"data_files": listed}]})
    assert shown(tmp_path, found) == expected
    left = {*FILES} - {name for names in expected for name in names}
    (note,) = found.notes
    others = named([name for name in FILES if name in left])
    assert note.startswith(f"{NOT_LISTED}(files_are={others}, ")
    assert note.endswith("configuration=)")


def test_files_of_splits_of_other_names_are_named(tmp_path: Path) -> None:
    listed = {"train": "a/*", "extra": "c/1.jsonl"}
    found = parts(tmp_path, FILES, {"configs": [{"data_files": listed}]})
    assert shown(tmp_path, found) == (["a/1.jsonl", "a/2.jsonl"], [], [])
    others = "data.files_are(files=c/1.jsonl, a/b/3.jsonl, c/x.jsonl)"
    assert found.notes[0].startswith(f"{NOT_LISTED}(files_are={others}, ")
    whole = parts(tmp_path, FILES, {"configs": [{"data_files": "**"}]})
    assert shown(tmp_path, whole) == (FILES, [], [])
    assert not whole.notes


A, C = ({"config_name": name, "data_files": f"{name}/*"} for name in "ac")


@pytest.mark.parametrize(
    ("configs", "trained", "whose"),
    [
        ([A, C | {"default": True}], "c", " (configuration c)"),
        ([A | {"default": True}, C], "a", " (configuration a)"),
        ([A, {"data_files": "c/*"}], "c", " (configuration default)"),  # without a name
        ([A, C | {"config_name": "default"}], "c", " (configuration default)"),
        ([A | {"default": True}, C | {"config_name": "default"}], "a", " (configuration a)"),
        ([A | {"default": "yes"}, C | {"config_name": "default"}], "c", " (configuration default)"),
        ([A, {"config_name": "z", "data_files": "z/*"}, "x"], "a", ""),  # no file of it is here
    ],
)
def test_of_several_configurations_the_default_is_trained_on(
    tmp_path: Path, configs: list[Any], trained: str, whose: str
) -> None:
    found = parts(tmp_path, FILES, {"configs": configs})
    assert {path.parent for path in found.train} == {tmp_path / trained}
    assert found.notes[0].startswith(NOT_LISTED)
    assert found.notes[0].endswith(f"configuration={whose})")


@pytest.mark.parametrize(
    ("listed", "shown_places"),
    [
        (
            {f"the-{n}": f"{n}/*" for n in "abcde"},
            "the-a ({0}/a), the-b ({0}/b), the-c ({0}/c) and 2 more",
        ),
        # The folder itself is of all of them.
        ({n: f"{n}.jsonl" for n in "xyz"}, "x ({0}/x.jsonl), y ({0}/y.jsonl), z ({0}/z.jsonl)"),
        (
            {n: f"{n}.jsonl" for n in "wxyz"},
            "w ({0}/w.jsonl), x ({0}/x.jsonl), y ({0}/y.jsonl) and 1 more",
        ),
        (
            {"m": ["a/1.jsonl", "c/1.jsonl"], "c": "c/*"},
            "m ({0}/a/1.jsonl), c ({0}/c)",
        ),
    ],
)
def test_of_several_configurations_three_are_named_with_what_to_set(
    tmp_path: Path, listed: dict[str, Any], shown_places: str
) -> None:
    configs = [{"config_name": name, "data_files": place} for name, place in listed.items()]
    files = [*FILES, "b/1.jsonl", "d/1.jsonl", "e/1.jsonl", *(f"{n}.jsonl" for n in "wxyz")]
    refusal = rf"data\.several_configurations.*num_configs={len(configs)},"
    with pytest.raises(ValueError, match=refusal) as raised:
        parts(tmp_path, files, {"configs": configs})
    assert str(raised.value).endswith(f"={shown_places.format(tmp_path)})")


@pytest.mark.parametrize(
    "card",
    [
        {"configs": [{"data_files": "none/*"}]},
        {"configs": [{"data_files": {"dev": "train.jsonl"}}]},
        {"configs": "train.jsonl"},
        {"configs": [{"data_files": {"train": 7}}]},
        "configs: [{data_files: 2024-99-99}]\n",
        "a: &a [*a]\n",
    ],
)
def test_a_card_that_names_nothing_to_train_on_decides_nothing(tmp_path: Path, card: Any) -> None:
    found = parts(tmp_path, ["train.jsonl", "dev.jsonl"], card)
    assert shown(tmp_path, found) == (["train.jsonl"], ["dev.jsonl"], [])


def test_a_card_is_read_whatever_marks_its_beginning(tmp_path: Path) -> None:
    matter = "configs:\n- data_files: a/1.jsonl\n"
    files = [tmp_path / name for name in FILES]
    for start, end, is_read in (
        ("---\n", "---\n", True),
        ("\ufeff---\n", "---\n", True),
        ("--- \n", "---  \nmore\n---\n", True),
        ("x\n---\n", "---\n", False),
        ("---\n", "--\n", False),
    ):
        (tmp_path / "README.md").write_text(start + matter + end + "\nb: 1")
        found = parts_of(tmp_path, files, lambda path: path.stem)
        assert found.train == (files[:1] if is_read else files)


@pytest.mark.parametrize(
    ("name", "is_alone", "with_others"),
    [
        # Whether it is no data, alone and among others of its ending.
        ("README.md", True, False),
        ("readme.txt", True, True),
        ("License.MD", True, False),
        ("LICENSE", False, False),
        ("requirements.txt", True, True),
        ("manifest.json", True, False),
        ("citation.markdown", True, False),
        ("readme.jsonl", False, False),
        ("notes.md", False, False),
        ("config.json", True, True),
        ("Tokenizer_Config.json", True, True),
        ("dataset_infos.json", True, True),
        ("model.safetensors.index.json", True, True),
        ("State.json", True, True),
        ("states.json", False, False),
    ],
)
def test_documents_and_settings_are_no_data(
    tmp_path: Path, name: str, is_alone: bool, with_others: bool
) -> None:
    path = tmp_path / name
    path.write_text("x")
    documents = [path, path.with_name(f"license{path.suffix}")]
    assert is_no_data(path, documents) == is_alone
    assert is_no_data(path, [*documents, tmp_path / f"a{path.suffix}"]) == with_others
    assert is_no_data(path, [*documents, tmp_path / "a.other"]) == is_alone
    assert is_alone or not is_no_data(path, [])


def test_a_readme_with_a_card_is_no_data_among_texts(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    for content, is_card in ((b"---\na: \xff\n---\n", True), (b"---\n- a\n---\n", False)):
        path.write_bytes(content)
        assert is_no_data(path, [path, tmp_path / "a.md"]) is is_card


def test_the_patterns_of_a_card_may_be_of_a_folder(tmp_path: Path) -> None:
    for folder, trained in (("a", ["a/1.jsonl"]), ("a/", ["a/1.jsonl"]), ("c", ["c/1.jsonl"])):
        config = {"data_dir": folder, "data_files": ["1.*", "*/9.jsonl"]}
        found = parts(tmp_path, FILES, {"configs": [config]})
        assert shown(tmp_path, found) == (trained, [], [])


def test_folders_that_are_trained_on_together_are_named_in_their_order(tmp_path: Path) -> None:
    names = [f"{folder}/train.jsonl" for folder in ("z", "b", "m", "a")]
    [note] = parts(tmp_path, names).notes
    together = "data.folders_trained_together(folders_are={})"
    assert note == together.format("data.more_files_are(files=a, b, m, count=1)")
    assert not parts(tmp_path, names[:1]).notes
    # Files without the name of a split, and held-out ones, are of no folder that is trained on.
    others = ["val.jsonl", "c/x_train.jsonl", "q/train/1.jsonl", "q/y.jsonl"]
    for train, folders in ((names[:1], "c, z"), ([], "c")):
        notes = parts(tmp_path, [*train, *others]).notes
        assert notes[0] == (
            "data.file_without_split_name(files_are=data.files_is(files=q/y.jsonl))"
        )
        two = together.format(f"data.files_are(files={folders})")
        assert notes[1:] == ([two] if train else [])


def test_the_splits_of_a_saved_data_set_are_the_texts_that_it_lists(tmp_path: Path) -> None:
    for content, expected in (
        ('{"splits": ["train", 3, "test"]}', ["train", "test"]),
        ('{"splits": "train"}', []),
        ("[]", []),
        ("{}", []),
        ("{", []),
        (json.dumps({"splits": []}), []),
    ):
        (tmp_path / "dataset_dict.json").write_text(content)
        assert saved_splits(tmp_path) == expected
    assert saved_splits(tmp_path / "none") == []
