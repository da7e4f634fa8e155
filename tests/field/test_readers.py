"""What is read of a file, by what is learnt and held out: cases of people's bug reports.

The numbers are those of the cases: R5 records, R6 the files of a folder, R7 and R8 cells whose type
says more than their text, R15 printed messages.
"""

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.json_text import MAX_DEPTH, parse_json
from infrastructure.data.encoding.python_repr import parse_python
from infrastructure.data.readers.json_format import lists_of
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.readers.sources import about_splits, discover
from infrastructure.training.methods.method_data import read_data
from tests.data.builders import (
    CHATML,
    byte_level_tokenizer,
    epoch,
    held_out,
    pairs,
    pipeline,
    write_jsonl,
)

QUESTIONS = [(f"What is {n}?", f"It is {n}.") for n in range(40)]


def read(path: Path, **settings: Any) -> tuple[list[Row], list[BadRow]]:
    rows = [row for file in discover(str(path), **settings) for row in file.rows()]
    good = [row for row in rows if isinstance(row, Row)]
    return good, [row for row in rows if isinstance(row, BadRow)]


def values(path: Path) -> list[dict[str, object]]:
    return [dict(row.values) for row in read(path)[0]]


def write_table(path: Path, rows: Any, delimiter: str = ",", **options: Any) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n", **options).writerows(rows)
    return path


def learnt(path: Path, cache: Path, **settings: Any) -> tuple[list[str], list[str], str]:
    """The texts that are trained on, those that are held out, and what is told."""
    with closing(pipeline(path, cache, byte_level_tokenizer(CHATML), **settings)) as data:
        notes = data.prepare().notes
        return sorted(epoch(data)), sorted(held_out(data)), "\n".join(notes)


def holds(texts: list[str], number: int) -> bool:
    return any(f"What is {number}?" in text for text in texts)


# R5: lines, records and rows


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_r5_a_stray_quote_joins_no_rows(tmp_path: Path, delimiter: str) -> None:
    """Twenty lines: three that a quote joins are set aside as three, or refused."""
    lines = [delimiter.join(row) for row in [("question", "answer"), *QUESTIONS[:20]]]
    lines[2], lines[4] = '"' + lines[2], lines[4].replace(delimiter, '"' + delimiter)
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    good, bad = read(path)
    assert [tuple(row.values.values()) for row in good] == [QUESTIONS[0], *QUESTIONS[4:20]]
    assert [row.line for row in bad] == [3, 3, 3]
    with pytest.raises(ValueError, match=r"rows\.csv:3.*data\.quote_spans_rows.*line=5"):
        learnt(path, tmp_path / "cache")
    taught, _, _ = learnt(path, tmp_path / "cache", max_bad_rows_percent=50, validation_split=0)
    assert len(taught) == 17
    assert not holds(taught, 2)


def test_r5_rows_that_a_record_of_wrong_columns_took_are_counted(tmp_path: Path) -> None:
    """A stray quote takes three lines, and what it makes of them has too few fields."""
    lines = ["question,answer", "q0,a0", '"q1,a1', "q2,a2", 'q3, or so,a3"', "q4,a4"]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    good, bad = read(path)
    assert [row.values["question"] for row in good] == ["q0", "q4"]
    assert [row.line for row in bad] == [3, 3]  # the third line is no row by itself either


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_r5_no_row_is_made_of_several_wherever_quotes_stray(
    tmp_path: Path, delimiter: str, seed: int
) -> None:
    """Quotes at the beginnings and ends of fields by chance: what is read was written."""
    draw = random.Random(seed)
    fields = [[f"q{n}", f"c{n} d", f"a{n}"] for n in range(30)]
    strayed = [list(row) for row in fields]
    for _ in range(draw.choice((2, 2, 4))):
        row, column = draw.randrange(30), draw.randrange(3)
        is_begin = draw.random() < 0.5
        strayed[row][column] = (
            ('"' if is_begin else "") + strayed[row][column] + '"' * (not is_begin)
        )
    lines = [delimiter.join(row) for row in [["question", "context", "answer"], *strayed]]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    try:
        good, bad = read(path)
    except ValueError:  # a quote without an end, which is a test of its own
        return
    written = {tuple(row) for row in [*fields, *strayed]}
    assert {tuple(row.values.values()) for row in good} <= written
    assert len(good) + len(bad) >= 26
    for one in good:  # what is read from a later row on is the same
        first = next(discover(str(path))[0].rows(Start(one.offset, one.line)))
        assert first == one


def test_r5_fields_over_several_lines_are_whole(tmp_path: Path) -> None:
    """Poems, code, and tables inside answers, as csv writes them: nothing is set aside."""
    rows = [
        ("Write a poem.", "Roses are red,\nviolets are blue,\nsugar is sweet,\nand so are you."),
        ("Roses are red,\nviolets are blue", "And so on."),
        ("Make a table, please\nof two", "name,age\nAnna,3\nBob,4"),
        ("Give code.", "def f(a, b):\n    return a,b\n\nprint(f(1, 2))"),
        ("List two.", "Here:\na,b\nc,d"),
        ('Say "hi".', 'He said "hi",\n"ho"\nand left.'),
        ("One line?", "Yes."),
    ]
    for delimiter in (",", ";", "\t"):
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
            path = tmp_path / "rows.csv"
            write_table(path, [("question", "answer"), *rows], delimiter, quoting=quoting)
            good, bad = read(path)
            assert [tuple(row.values.values()) for row in good] == rows
            assert not bad


def test_r5_one_long_answer_among_short_ones_is_whole(tmp_path: Path) -> None:
    poem = "Roses are red,\nviolets are blue,\nsugar is sweet."
    rows = [*QUESTIONS[:30], ("A poem?", poem), (poem, "A poem."), *QUESTIONS[30:]]
    good, bad = read(write_table(tmp_path / "rows.csv", [("question", "answer"), *rows]))
    assert [tuple(row.values.values()) for row in good] == rows
    assert not bad


def test_r5_only_a_table_with_long_records_has_tables_inside(tmp_path: Path) -> None:
    """Where lines could be rows, the other records of the file decide."""
    table = ("Two, please.", "Here:\na,b\nc,d")
    poem = ("A poem?", "Roses are red,\nviolets are blue.")
    for others, num_bad in (([], 3), ([poem], 3), ([poem, poem], 0)):
        rows = [("question", "answer"), ("One?", table[1]), *others, *QUESTIONS]
        good, bad = read(write_table(tmp_path / "rows.csv", rows))
        assert len(bad) == num_bad
        assert len(good) == len(rows) - 1 - (num_bad > 0)


@pytest.mark.parametrize(
    ("content", "num_good", "num_bad"),
    [
        (b"question,answer\rq1,a1\rq2,a2\r", 2, 0),  # lines of old Macs
        (b"question;answer\r\nq1;a, 1\r\nq2;a2\r\n", 2, 0),
        (b"question,answer\nq1,a1\nquestion,answer\nq2,a2\n", 2, 1),
        (b"question,answer\nq1,a1,x\nq2\nq3,a3\n", 1, 2),
        (b'question,answer\nq1,the "best" one\nq2,5" wide\n', 2, 0),
        (b'question,answer\nq1,"a1" or so\nq2,a2\n', 1, 1),
        (b"question,answer\n" + b"q,a\n" * 20_000 + b"q1,a\x001\n", 20_000, 1),
    ],
)
def test_r5_each_record_is_read_or_set_aside(
    tmp_path: Path, content: bytes, num_good: int, num_bad: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    good, bad = read(path)
    assert (len(good), len(bad)) == (num_good, num_bad)


def test_r5_a_quote_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('question,answer\nq1,a1\nq2,"a2\nq3,a3\n')
    with pytest.raises(ValueError, match=r"data\.quote_never_closed\(file=rows\.csv, line=3\)"):
        read(tmp_path / "rows.csv")


PAIR = '{"prompt": "p", "completion": "c"}'
QAS = '{"question": "q", "answers": [{"text": "c"}]}'
PARAGRAPHS = f'{{"title": "t", "paragraphs": [{{"context": "a c", "qas": [{QAS}]}}]}}'


@pytest.mark.parametrize(
    ("lines", "num_good", "num_bad"),
    [
        ([PAIR, f"{PAIR} {PAIR}", PAIR], 2, 1),
        ([f"{PAIR} {PAIR}", PAIR], 3, 0),
        ([PAIR, *PAIR.split(", "), PAIR], 2, 2),
        ([PAIR + ",", PAIR + ","], 2, 0),
        ([PAIR, '{"prompt": "p", "prompt": "q", "completion": "c"}'], 1, 1),
        ([PAIR, '{"prompt": "p", "prompt": "p", "completion": "c"}'], 2, 0),
        ([PAIR, '{"messages": [{"role": "user", "role": "assistant"}]}'], 1, 1),
    ],
)
def test_r5_a_json_line_is_one_row_or_none(
    tmp_path: Path, lines: list[str], num_good: int, num_bad: int
) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    good, bad = read(tmp_path / "rows.jsonl")
    assert (len(good), len(bad)) == (num_good, num_bad)


@pytest.mark.parametrize(
    "document",
    [
        f"[{PAIR}] {PAIR}",
        f'{{"data": [{PAIR}]}} {PAIR}',
        f'{{"data":\n[{PAIR}], "data": [{PAIR}]}}',
        f'{{"version": 1,\n"train": [{PAIR}]}}{{"train": [{PAIR}]}}',
        '[{"prompt": "p", "prompt": "q", "completion": "c"}]',
        f'{{"data": [{PARAGRAPHS}], "data": [{PARAGRAPHS}]}}',
        f"[{PARAGRAPHS}] {PARAGRAPHS}",
    ],
)
def test_r5_rows_that_a_document_would_lose_are_refused(tmp_path: Path, document: str) -> None:
    (tmp_path / "rows.json").write_text(document)
    with pytest.raises(ValueError, match=r"data\.json_broken.*file=rows\.json"):
        read(tmp_path / "rows.json")


def test_r5_what_follows_the_rows_of_a_document_is_no_error(tmp_path: Path) -> None:
    for row in (PAIR, PARAGRAPHS):
        (tmp_path / "rows.json").write_text(f'{{"data": [{row}], "more": [[1], {{}}], "n": 1}}\n')
        assert len(values(tmp_path / "rows.json")) == 1


# R6: the files of a folder


def numbered(folder: Path, files: dict[str, range]) -> None:
    for name, numbers in files.items():
        rows = [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in numbers]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif name.endswith(".csv"):
            write_table(path, [("question", "answer"), *(tuple(r.values()) for r in rows)])
        else:
            write_jsonl(path, rows)


NAMES = ("train", "validation", "test")


def numbers_in(texts: list[str]) -> set[int]:
    return {n for n in range(40) if holds(texts, n)}


@pytest.mark.parametrize(
    "names",
    [
        tuple(f"{split}-00000-of-00001.parquet" for split in NAMES),
        tuple(f"data/{split}-00000-of-00001-a09b74b3ef9c3b56.parquet" for split in NAMES),
        tuple(f"default/{split}/0000.parquet" for split in NAMES),
        ("data/train/a.jsonl", "data/dev/a.jsonl", "data/test/a.jsonl"),
        ("dataset.train.jsonl", "dataset.validation.jsonl", "dataset.test.jsonl"),
        ("gsm_train.csv", "gsm_val.csv", "gsm_test.csv"),
        ("Train.csv", "Valid.csv", "Test.csv"),
        ("training/1.jsonl", "evaluation/1.jsonl", "testing/1.jsonl"),
        ("questions.jsonl", "eval.jsonl", "test.jsonl"),
    ],
)
def test_r6_files_are_used_by_their_names(tmp_path: Path, names: tuple[str, str, str]) -> None:
    folder = tmp_path / "snapshot"
    numbered(folder, dict(zip(names, (range(10), range(10, 14), range(20, 24)), strict=True)))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A data set\n")
    (folder / ".gitattributes").write_text("*.parquet filter=lfs\n")
    (folder / "dataset_infos.json").write_text('{"default": {"splits": {}}}')
    (folder / "LICENSE.txt").write_text("MIT")
    taught, kept, notes = learnt(folder, tmp_path / "cache")
    assert numbers_in(taught) == {*range(10)}
    assert numbers_in(kept) == {*range(10, 14)}
    assert names[1] in notes
    assert names[2] in notes
    assert "README" not in notes
    assert "LICENSE" not in notes


def test_r6_a_method_of_trl_trains_on_the_same_files(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    for name, numbers in zip(NAMES, (range(10), range(10, 14), range(20, 24)), strict=True):
        rows = [{"prompt": f"What is {n}?", "chosen": "a", "rejected": "b"} for n in numbers]
        write_jsonl(folder / f"{name}.jsonl", rows)
    config = DeploymentConfig(data={"path": str(folder)}, training={"method": "dpo"})
    data = read_data(config, byte_level_tokenizer(CHATML), tmp_path / "quarantine.jsonl")
    assert numbers_in([str(row) for row in data.train]) == {*range(10)}
    assert numbers_in([str(row) for row in data.held_out]) == {*range(10, 14)}
    assert "test.jsonl" in "\n".join(data.notes)


def test_r6_a_test_split_is_measured_on_by_request(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    numbered(folder, {"train.jsonl": range(10), "test.jsonl": range(20, 24)})
    taught, kept, _ = learnt(folder, tmp_path / "cache", validation_split=0.3)
    assert numbers_in(taught) | numbers_in(kept) == {*range(10)}
    assert kept
    for place in (folder, folder / "test.jsonl"):
        taught, kept, notes = learnt(folder, tmp_path / "cache", eval_path=str(place))
        assert numbers_in(taught) == {*range(10)}
        assert numbers_in(kept) == {*range(20, 24)}
        assert not notes


def test_r6_without_a_share_to_hold_out_the_split_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    numbered(folder, {"train.jsonl": range(10), "validation.jsonl": range(10, 14)})
    taught, kept, notes = learnt(folder, tmp_path / "cache", validation_split=0)
    assert numbers_in(taught) == {*range(10)}
    assert not kept
    assert "validation.jsonl" in notes


@pytest.mark.parametrize(
    "names",
    [
        ("a.jsonl", "b.jsonl"),
        ("2024/part-1.jsonl", "2025/part-2.jsonl"),
        ("math_test.jsonl", "physics_test.jsonl"),
        ("cooking.jsonl", "dev_tools.jsonl"),
        ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"),
        ("test_1.jsonl", "test_2.jsonl"),
        ("latest.jsonl", "contest.jsonl"),
    ],
)
def test_r6_names_that_divide_nothing_change_nothing(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    folder = tmp_path / "folder"
    numbered(folder, {names[0]: range(10), names[1]: range(10, 20)})
    taught, _, _ = learnt(folder, tmp_path / "cache", validation_split=0)
    assert numbers_in(taught) == {*range(20)}


CARD = "---\nconfigs:\n{configs}---\n# A data set\n"
ONE = """- config_name: default
  data_files:
  - split: train
    path: "first/*.jsonl"
  - split: validation
    path:
    - second/a.jsonl
  - split: test
    path: third/**
"""
OTHER = """- config_name: other
  data_files: fourth/*.jsonl
"""


def test_r6_a_card_divides_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "README.md").write_text(CARD.format(configs=ONE))
    files = {"first/a.jsonl": range(10), "second/a.jsonl": range(10, 14)}
    numbered(folder, files | {"third/x/a.jsonl": range(20, 24), "fifth/a.jsonl": range(30, 34)})
    taught, kept, notes = learnt(folder, tmp_path / "cache")
    assert numbers_in(taught) == {*range(10)}
    assert numbers_in(kept) == {*range(10, 14)}
    assert "fifth/a.jsonl" in notes
    assert "third/x/a.jsonl" in notes


def test_r6_of_several_configurations_one_has_to_be_named(tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "README.md").write_text(CARD.format(configs=ONE.replace("default", "main") + OTHER))
    files = {"first/a.jsonl": range(10), "second/a.jsonl": range(10, 14)}
    numbered(folder, files | {"third/a.jsonl": range(20, 24), "fourth/a.jsonl": range(30, 40)})
    with pytest.raises(ValueError, match=r"data\.several_configurations.*main.*other \(.*fourth\)"):
        discover(str(folder))
    assert len(values(folder / "fourth")) == 10
    (folder / "README.md").write_text(CARD.format(configs=ONE + OTHER))
    assert numbers_in([str(row) for row in values(folder)]) == {*range(10)}
    (folder / "README.md").write_text(CARD.format(configs=ONE + OTHER + "  default: true\n"))
    assert numbers_in([str(row) for row in values(folder)]) == {*range(30, 40)}


@pytest.mark.parametrize("card", ["", "# Data\n", "---\nconfigs: [\n---\n", "---\n- 1\n---\n"])
def test_r6_without_a_division_in_the_card_names_count(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    numbered(tmp_path, {"train.jsonl": range(10), "test.jsonl": range(20, 24)})
    assert numbers_in([str(row) for row in values(tmp_path)]) == {*range(10)}


def test_r6_a_readme_among_documents_is_one_and_a_card_is_not(tmp_path: Path) -> None:
    for name in ("README.md", "guide.md", "LICENSE"):
        (tmp_path / name).write_text(f"{name} is a text.\n")
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert len(values(tmp_path)) == 2
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\nA card.\n")
    assert [row["text"] for row in values(tmp_path)] == ["guide.md is a text."]


def test_r6_saved_splits_are_used_as_they_are_called(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    def of(numbers: range) -> Dataset:
        rows = [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in numbers]
        return Dataset.from_list(rows)

    splits = {"train": of(range(10)), "validation": of(range(10, 14)), "test": of(range(20, 24))}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    taught, kept, notes = learnt(tmp_path / "saved", tmp_path / "cache")
    assert numbers_in(taught) == {*range(10)}
    assert numbers_in(kept) == {*range(10, 14)}
    assert "saved@test" in notes


# R7, R8: what the type of a cell says


def test_r7_labels_are_learnt_by_their_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = [{"text": f"Film {n}", "label": n % 2 if n < 9 else -1} for n in range(10)]
    saved = Dataset.from_list(rows, features=features)
    saved.to_parquet(str(tmp_path / "films.parquet"))
    saved.save_to_disk(tmp_path / "films")
    names = ["bad", "good"] * 4 + ["bad", None]
    for place in ("films.parquet", "films"):
        assert [row["label"] for row in values(tmp_path / place)] == names
        columns = {"prompt_column": "text", "answer_column": "label", "validation_split": 0}
        taught, _, _ = learnt(
            tmp_path / place, tmp_path / "cache", max_bad_rows_percent=10, **columns
        )
        assert sum("good<|im_end|>" in text for text in taught) == 4
        assert sum("bad<|im_end|>" in text for text in taught) == 5


@pytest.mark.parametrize("is_bare", [True, False])
def test_r7_labels_in_lists_are_their_names_however_the_lists_are_described(
    tmp_path: Path, is_bare: bool
) -> None:
    label = {"_type": "ClassLabel", "names": ["no", "yes"]}
    listed = [label] if is_bare else {"_type": "List", "feature": label}
    described = json.dumps({"info": {"features": {"labels": listed}}})
    table = pa.table({"labels": [[1, 0], [0]]}).replace_schema_metadata({"huggingface": described})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert [row["labels"] for row in values(tmp_path / "rows.parquet")] == [["yes", "no"], ["no"]]


def test_r7_a_label_still_chooses_among_choices(tmp_path: Path) -> None:
    names = json.dumps(
        {"info": {"features": {"answer": {"names": ["c1", "c2"], "_type": "ClassLabel"}}}}
    )
    table = pa.table(
        {"question": ["One or two?"] * 4, "choices": [["x", "y"]] * 4, "answer": [1] * 4}
    )
    pq.write_table(table.replace_schema_metadata({"huggingface": names}), tmp_path / "rows.parquet")
    taught, _, _ = learnt(tmp_path / "rows.parquet", tmp_path / "cache", validation_split=0)
    assert all("B. y<|im_end|>" in text for text in taught)


def test_r7_an_enumeration_of_hdf5_is_its_names(tmp_path: Path) -> None:
    kind = h5py.enum_dtype({"no": 0, "yes": 1}, basetype="i")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["question"] = [b"q1", b"q2"]
        file.create_dataset("answer", data=np.array([1, 0]), dtype=kind)
    assert [row["answer"] for row in values(tmp_path / "rows.h5")] == ["yes", "no"]


MAP = pa.map_(pa.string(), pa.string())
CELLS: dict[str, tuple[Any, object]] = {
    "date": (pa.array([date(2024, 1, 5)]), "2024-01-05"),
    "moment": (pa.array([datetime(2024, 1, 5, 3, 4)], pa.timestamp("ns")), "2024-01-05T03:04:00"),
    "decimal": (pa.array([Decimal("12.50")]), "12.50"),
    "uuid": (pa.array([UUID(int=7).bytes], pa.uuid()), str(UUID(int=7))),
    "map": (pa.array([[("a", None), ("b", "x")]], MAP), {"a": None, "b": "x"}),
    "dates": (pa.array([[date(2024, 1, 5)]]), ["2024-01-05"]),
    "maps": (pa.array([[[("a", 1)]]], pa.list_(pa.map_(pa.string(), pa.int8()))), [{"a": 1}]),
    "object": (pa.array([{"on": date(2024, 1, 5), "no": None}]), {"on": "2024-01-05", "no": None}),
    "view": (pa.array(["x"], pa.string_view()), "x"),
    "large": (pa.array(["x"], pa.large_string()), "x"),
    "list": (pa.array([["x"]], pa.list_view(pa.string())), ["x"]),
    "words": (pa.array(["x"]).dictionary_encode(), "x"),
    "nothing": (pa.nulls(1), None),
    "bytes": (pa.array([b"x"]), b"x"),
    "duration": (pa.array([timedelta(days=1)]), timedelta(days=1)),
}  # fmt: skip


def can_write(cell: pa.Array) -> bool:
    """Pyarrow 18 writes no views."""
    try:
        pq.write_table(pa.table({"cell": cell}), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError:
        return False
    return True


def test_r7_r8_a_cell_is_what_its_type_means(tmp_path: Path) -> None:
    cells = {name: pair for name, pair in CELLS.items() if can_write(pair[0])}
    assert {*CELLS} - {*cells} <= {"view", "list"}
    table = pa.table({"question": ["q"], **{name: cell for name, (cell, _) in cells.items()}})
    pq.write_table(table, tmp_path / "rows.parquet")
    (row,) = values(tmp_path / "rows.parquet")
    assert row == {"question": "q", **{name: value for name, (_, value) in cells.items()}}


@pytest.mark.parametrize("column", ["duration", "bytes", "beyond"])
def test_r7_what_has_no_text_is_named_and_harms_only_who_uses_it(
    tmp_path: Path, column: str
) -> None:
    cells = {"duration": CELLS["duration"][0], "bytes": CELLS["bytes"][0]}
    cells["beyond"] = pa.array([3_000_000], pa.date32())  # the year 10183
    rows = {
        "question": ["q"] * 3,
        "answer": ["a"] * 3,
        "more": pa.concat_arrays([cells[column]] * 3),
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    taught, _, _ = learnt(tmp_path / "rows.parquet", tmp_path / "cache", validation_split=0)
    assert len(taught) == 3
    named = {"prompt_column": "question", "answer_column": "more"}
    with pytest.raises(
        ValueError, match=r"data\.value_not_text\(where=data\.place_column\(column=more\)"
    ):
        learnt(tmp_path / "rows.parquet", tmp_path / "cache", **named)


def test_r8_many_maps_are_read_in_slices(tmp_path: Path) -> None:
    maps = pa.array([[("k", "v" * 90_000)]] * 300, pa.map_(pa.string(), pa.string()))
    rows = {"question": [f"q{n}" for n in range(300)], "answer": ["a"] * 300, "meta": maps}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    good, bad = read(tmp_path / "rows.parquet")
    assert [row.values["question"] for row in good] == rows["question"]
    assert not bad


def test_r7_the_row_numbers_of_pandas_are_no_column(tmp_path: Path) -> None:
    import pandas as pd

    rows = {"question": ["q1", "q2"], "answer": pd.Categorical(["yes", "no"])}
    pd.DataFrame(rows, index=[7, 3]).to_parquet(tmp_path / "rows.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "rows.parquet").names
    assert values(tmp_path / "rows.parquet")[1] == {"question": "q2", "answer": "no"}


# R7, cells of Excel


def workbook(path: Path, cells: list[tuple[object, str]], change: Any = None) -> Path:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.append(["question", "answer"])
    for number, (cell, shown_as) in enumerate(cells, 2):
        sheet.append([f"q{number}", cell])
        if shown_as:
            sheet.cell(number, 2).number_format = shown_as
    if change:
        change(book, sheet)
    book.save(path)
    return path


def test_r7_a_cell_of_excel_is_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    cells: list[tuple[object, str, str]] = [
        (date(2024, 1, 5), "", "2024-01-05"),
        (datetime(2024, 1, 5, 10, 30), "", "2024-01-05T10:30:00"),
        (timedelta(hours=26), "", "26:00:00"),
        (0.5, "0%", "50%"),
        (0.125, "0.0%", "12.5%"),
        (501, "00000", "00501"),
        ("00501", "", "00501"),
        (0.1 + 0.2, "", "0.3"),
        (3.25, "", "3.25"),
        (12, "", "12"),
        (True, "", "TRUE"),
        ("a_x000D_\nb", "", "a\r\nb"),
        ("  two\n  lines", "", "  two\n  lines"),
        ("snake_xyz_case", "", "snake_xyz_case"),
    ]
    path = workbook(tmp_path / "rows.xlsx", [cell[:2] for cell in cells])
    assert [row["answer"] for row in values(path)] == [shown for _, _, shown in cells]
    assert not discover(str(path))[0].note


@pytest.mark.parametrize("cell", ["#N/A", "#REF!", "#DIV/0!", "=1+1"])
def test_r7_a_cell_of_excel_without_a_value_is_named(tmp_path: Path, cell: str) -> None:
    pytest.importorskip("openpyxl")
    path = workbook(tmp_path / "rows.xlsx", [*[(f"a{n}", "") for n in range(9)], (cell, "")])
    settings: dict[str, Any] = {"max_bad_rows_percent": 20, "validation_split": 0}
    taught, _, _ = learnt(path, tmp_path / "cache", **settings)
    assert len(taught) == 9
    assert not any(cell in text for text in taught)
    with pytest.raises(ValueError, match=r"excel\.error_in_cell|excel\.formula_without_value"):
        learnt(path, tmp_path / "cache", max_bad_rows_percent=1)


def test_r7_merged_cells_are_alike_and_a_hidden_sheet_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")

    def change(book: Any, sheet: Any) -> None:
        hidden = book.create_sheet("Old", 0)
        hidden.append(["question", "answer"])
        hidden.append(["old", "old"])
        hidden.sheet_state = "hidden"
        sheet.merge_cells("B2:B4")

    path = workbook(tmp_path / "rows.xlsx", [("a", ""), (None, ""), (None, ""), ("b", "")], change)
    assert [row["answer"] for row in values(path)] == ["a", "a", "a", "b"]
    assert "Old" in discover(str(path))[0].note


def test_r7_of_many_sheets_that_are_not_read_a_few_are_named(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")

    def change(book: Any, sheet: Any) -> None:
        for number in range(30):
            book.create_sheet(f"Other {number}")

    path = workbook(tmp_path / "rows.xlsx", [("a", "")], change)
    note = discover(str(path))[0].note
    assert "Other 0" in note
    assert "Other 29" not in note


# White space


@pytest.mark.parametrize("text", ["    indented", "\tTab", "  two\n    more\n  less", "end  "])
def test_r5_white_space_at_the_edges_belongs_to_the_text(tmp_path: Path, text: str) -> None:
    """Of lines and passages of plain text, and of each column, by token ids."""
    tokenizer = byte_level_tokenizer(CHATML)
    (tmp_path / "a.txt").write_text(f"{text}\n\nOther.\n" if "\n" in text else f"{text}\nOther.\n")
    source = pipeline(tmp_path / "a.txt", tmp_path / "cache", tokenizer, validation_split=0)
    with closing(source) as data:
        data.prepare()
        ids = [list(one.input_ids) for batch in data.train_batches(0, 0, 8) for one in batch]
    assert tokenizer(text).input_ids in [one[: len(tokenizer(text).input_ids)] for one in ids]
    row = {"system": text, "question": text, "context": text, "answer": text}
    write_jsonl(tmp_path / "a.jsonl", [row, row | {"answer": "Other."}])
    taught, _, _ = learnt(tmp_path / "a.jsonl", tmp_path / "cache", validation_split=0)
    assert all(f"<|im_start|>system\n{text}<|im_end|>" in one for one in taught)
    assert any(f"<|im_start|>assistant\n{text}<|im_end|>" in one for one in taught)
    assert all(f"<|im_start|>user\n{text}" in one for one in taught)


# R15


def test_r15_messages_that_python_printed_are_messages(tmp_path: Path) -> None:
    chats = [
        [
            {"role": "user", "content": f"It's {n} o'clock, \"ok\"?\n[yes]"},
            {"role": "assistant", "content": f"Yes, {n}. It\\'s", "weight": None},
        ]
        for n in range(4)
    ]
    printed = write_table(tmp_path / "a.csv", [["messages"], *([repr(chat)] for chat in chats)])
    write_jsonl(tmp_path / "b.jsonl", [{"messages": chat} for chat in chats])
    given, expected = (
        learnt(path, tmp_path / "cache", validation_split=0)[0]
        for path in (printed, tmp_path / "b.jsonl")
    )
    assert given == expected


@pytest.mark.parametrize(
    "text",
    [
        "[{'role': 'user', 'content': 'a'}\n {'role': 'assistant', 'content': 'b'}]",  # NumPy
        "[{'role': 'user', 'content': 'a' 'b'}, {'role': 'assistant', 'content': 'c'}]",
        "[{'role': 'user', 'content': b'a'}, {'role': 'assistant', 'content': 'c'}]",
        "[{'role': 'user', 'content': print('a')}, {'role': 'assistant', 'content': 'c'}]",
        "[{'role': 'user', 'content': ...}, {'role': 'assistant', 'content': 'c'}]",
        "[" * 5_000 + "]" * 5_000,
        str([{"role": role, "content": "a" * 200_000} for role in ("user", "assistant")]),
    ],
)
def test_r15_what_is_no_list_of_literals_is_set_aside(tmp_path: Path, text: str) -> None:
    good = repr([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    path = write_table(tmp_path / "a.csv", [["messages"], [good], [text], [good]])
    settings: dict[str, Any] = {"max_bad_rows_percent": 50, "validation_split": 0}
    taught, _, _ = learnt(path, tmp_path / "cache", **settings)
    assert len(taught) == 2


def test_r15_the_size_of_what_is_printed_is_bounded() -> None:
    with pytest.raises(ValueError, match=r"data\.python_text_too_long"):
        parse_python("['" + "a" * 300_000 + "']")


def test_r15_what_is_printed_may_be_as_deep_as_json() -> None:
    def is_read(parse: Callable[[str], object], depth: int) -> bool:
        try:
            parse("[[], " + "[" * (depth - 1) + "]" * depth)
        except ValueError:
            return False
        return True

    for depth in (MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1):
        assert is_read(parse_python, depth) == is_read(parse_json, depth) == (depth <= MAX_DEPTH)


def test_r15_a_prompt_that_begins_with_a_bracket_is_text(tmp_path: Path) -> None:
    rows = [{"prompt": start + " what?", "completion": start} for start in ("[1]", "{x}", "[INST]")]
    write_jsonl(tmp_path / "a.jsonl", rows)
    taught, _, _ = learnt(tmp_path / "a.jsonl", tmp_path / "cache", validation_split=0)
    assert all(any(f"{row['prompt']}<|im_end|>" in text for text in taught) for row in rows)


def test_r15_an_unknown_ending_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("2026-01-01 started\n" * 100)
    code = (
        "import sys\nfrom infrastructure.commands.main import main_of_process as main\n"
        "sys.argv = ['temper', 'check', 'server.log']\n"
        "print(main(), 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["2", "False"], done.stderr
    assert "data.unknown_file_extension" in done.stderr


def test_healthy_rows_are_read_as_before(tmp_path: Path) -> None:
    """The same rows by each format, and nothing told of them."""
    rows = pairs(40)
    write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    write_table(tmp_path / "c.csv", [tuple(rows[0]), *(tuple(row.values()) for row in rows)])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    seen = {
        str(learnt(tmp_path / name, tmp_path / "cache", validation_split=0))
        for name in ("a.jsonl", "b.json", "c.csv", "d.parquet")
    }
    assert len(seen) == 1


def test_r6_a_card_names_files_below_its_folder(tmp_path: Path) -> None:
    config = "- config_name: default\n  data_dir: first\n  data_files: train.jsonl\n"
    (tmp_path / "README.md").write_text(CARD.format(configs=config))
    for name, numbers in (("first", range(10)), ("second", range(20, 24))):
        numbered(tmp_path / name, {"train.jsonl": numbers})
    assert numbers_in([str(row) for row in values(tmp_path)]) == {*range(10)}


def test_r6_the_last_word_of_a_name_decides(tmp_path: Path) -> None:
    numbered(tmp_path, {"train_test.jsonl": range(20, 24), "numbers_train.jsonl": range(10)})
    assert numbers_in([str(row) for row in values(tmp_path)]) == {*range(10)}


@pytest.mark.parametrize(
    ("others", "key"),
    [
        ('"validation": [{}], "test": [{}]', "validation"),
        ('"n": 1, "validation": [{}]', "validation"),
        ('"validation": "none", "test": [{}]', "test"),
        ('"validation": {"a": 1}', ""),
        ('"validation": [1, {}]', ""),
        ('"validation": []', ""),
    ],
)
def test_r6_a_document_holds_out_a_list_of_rows_alone(
    tmp_path: Path, others: str, key: str
) -> None:
    for document in (f'{{"train": [{PAIR}], {others}}}', f'{{{others}, "train": [{PAIR}]}}'):
        (tmp_path / "rows.json").write_text(document)
        assert lists_of(tmp_path / "rows.json").held_out == key


@pytest.mark.parametrize(
    ("document", "unread"),
    [
        ('{"data": [ROW], "extra": [ROW, ROW]}', ("extra",)),
        ('{"extra": [ROW], "more": [ROW], "data": [ROW], "n": [1]}', ("extra", "more")),
        ('{"train": [ROW], "validation": [ROW], "test": [ROW]}', ("test",)),
        ('{"data": [ROW], "validation": [ROW]}', ("validation",)),
        ('{"data": [ROW], "tags": ["a", "b"], "about": {"rows": [ROW]}}', ()),
        ('{"rows": [ROW]}', ()),
        ("[ROW, ROW]", ()),
        ('{"data": [ROW], "extra": [ROW', ()),
    ],
)
def test_r5_lists_of_a_document_that_nothing_reads_are_named(
    tmp_path: Path, document: str, unread: tuple[str, ...]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(document.replace("ROW", PAIR))
    assert lists_of(path).unread == unread
    notes = about_splits(discover(str(path)), [])
    assert [f"`{key}`" in " ".join(notes) for key in unread] == [True] * len(unread)
    assert any("data.rows_of_other_lists_unread" in note for note in notes) == bool(unread)
    path.write_text(f'{{"data": [{PAIR}]}}')
    assert lists_of(path).unread == ()  # it is read again


@pytest.mark.parametrize(
    ("files", "together"),
    [
        (("main/train-0.jsonl", "socratic/train-0.jsonl"), True),
        (("main/train-0.jsonl", "socratic/train-0.jsonl", "main/test-0.jsonl"), True),
        (("a/train/0.jsonl", "a/train/1.jsonl", "a/test/0.jsonl"), False),
        (("train/0.jsonl", "train/1.jsonl"), False),
        (("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"), False),
        (("monday/0.jsonl", "tuesday/0.jsonl"), False),
        (("main/train-0.jsonl", "other/notes.jsonl"), False),
    ],
)
def test_r6_configurations_that_are_trained_on_together_are_named(
    tmp_path: Path, files: tuple[str, ...], together: bool
) -> None:
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{PAIR}\n")
    notes = about_splits(discover(str(tmp_path)), [])
    notes += [file.note for file in discover(str(tmp_path)) if file.note]
    assert any("main" in note and "socratic" in note for note in notes) == together
    assert any("together" in note for note in notes) == together
