"""One pass over the data: what is told, what is set aside, what is held out."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.normalizers import Lowercase

from infrastructure.data.preparation import preparation as module
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.readers import rows as reasons
from infrastructure.data.store.examples import TokenizedExample
from tests.data.builders import (
    CHATML,
    MARKED,
    byte_level_tokenizer,
    epoch,
    held_out,
    pairs,
    pipeline,
    write_jsonl,
)
from tests.slow import slow_but


def rows_used(report: DataReport) -> int:
    return report.num_train + report.num_evaluation


def same(left: TokenizedExample, right: TokenizedExample) -> bool:
    return (
        np.array_equal(left.input_ids, right.input_ids)
        and np.array_equal(left.supervised, right.supervised)
        and left.task == right.task
    )


def test_the_report_lists_what_was_found(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache, task_column="task")
    report = prepared.prepare()
    assert report.rows_read == 100
    assert report.num_train + report.num_evaluation == 100
    assert prepared.num_examples == report.num_train
    assert (report.shape, report.files[0]["format"]) == ("qa", "jsonl")
    examples = [e for batch in prepared.train_batches(0, 0, 8) for e in batch]
    lengths = [len(example.input_ids) for example in examples]
    assert report.tokens == sum(lengths)
    assert report.supervised_tokens == sum(int(e.supervised.sum()) for e in examples)
    assert report.longest == max(lengths)
    assert report.length_quantiles["50%"] in lengths
    assert report.task_counts == Counter(example.task for example in examples)
    assert report.end_tokens == {"<|endoftext|>": 100}
    assert prepared.stop_token_ids == [prepared.tokenizer.eos_token_id]
    text = "\n".join(report.lines())
    assert "data.rows_read(count=100, names=train.jsonl (jsonl))" in text
    assert "ata.recognized_pair(prompt=question, answer=answer)" in text
    assert "data.tasks(tasks=" in text
    assert 0 < report.seconds < 600
    json.dumps(report.to_dict())


@pytest.mark.parametrize("num_processes", slow_but([1], [1, 2]))  # each imports PyTorch
def test_the_number_of_processes_does_not_matter(
    tmp_path: Path, cache: Path, num_processes: int
) -> None:
    rows: list[Any] = [*pairs(600), "{broken", {"question": "Q", "answer": ""}]
    rows.insert(300, {"question": "Q"})
    data = write_jsonl(tmp_path / "a.jsonl", rows)
    here = pipeline(data, cache, num_workers=0, task_column="task")
    options = {"num_workers": num_processes, "task_column": "task"}
    there = pipeline(data, tmp_path / "other", **options)
    assert not there.report.from_cache
    assert here.fingerprint == there.fingerprint
    assert here.report.quarantine == there.report.quarantine
    for left, right in zip(here.train_batches(0, 0, 9), there.train_batches(0, 0, 9), strict=True):
        assert all(same(a, b) for a, b in zip(left, right, strict=True))
    assert here.questions() == there.questions()


BAD_ROWS = {
    1: ("{broken", reasons.BROKEN_JSON),
    11: ("[]", reasons.WRONG_TYPE),
    21: ({"question": "Q"}, reasons.MISSING_COLUMN),
    31: ({"question": "", "answer": "A"}, reasons.EMPTY),
    41: ({"question": "Q", "answer": {}}, reasons.WRONG_TYPE),
    51: ({"question": "Q" * 99, "answer": "word " * 300}, reasons.OVER_LONG),
    61: ('{"question": "Q", "answer": "\\ud800"}', reasons.HALF_CHARACTER),
}


def write_with_bad_rows(path: Path) -> None:
    rows: list[Any] = pairs(100)
    for line, (row, _) in BAD_ROWS.items():
        rows[line - 1] = row
    write_jsonl(path, rows)
    path.write_bytes(path.read_bytes().replace(b"What is 70", b"What \xe4 is 70"))


def test_bad_rows_are_reported_with_file_and_line(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "bad.jsonl"
    write_with_bad_rows(data)
    prepared = pipeline(data, cache, over_length="quarantine", max_bad_rows_percent=10)
    for _ in range(2):  # built, then found
        found = {row.place: row.reason for row in prepared.report.quarantine.bad_rows}
        expected = {f"bad.jsonl:{line}": reason for line, (_, reason) in BAD_ROWS.items()}
        assert found == expected | {"bad.jsonl:71": reasons.INVALID_UTF8}
        assert rows_used(prepared.report) == 92
        assert prepared.report.rows_read == 100
        prepared = pipeline(data, cache, over_length="quarantine", max_bad_rows_percent=10)
    text = "\n".join(prepared.report.lines())
    assert "data.rows_skipped(count=8, percent=8.0, reasons=2 wrong type, 1 broken JSON" in text
    assert (
        "bad.jsonl:1: broken JSON (data.json_error_at_column(error=Expecting property name" in text
    )
    assert "data.file_read_partly" in text
    prepared.report.quarantine.write(tmp_path / "run" / "quarantine.jsonl")
    assert len((tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()) == 8


def test_prepared_data_is_of_its_encoding(tmp_path: Path, cache: Path) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", pairs(40))
    data.write_bytes(data.read_bytes().replace(b"What is 7", b"\x82\xa0 is 7"))
    first = pipeline(data, cache, encoding="shift_jis")
    assert first.report.quarantine.total == 0
    again = pipeline(data, cache, encoding="cp932")
    assert not again.report.from_cache
    other = pipeline(data, cache, encoding="gb18030")
    assert not other.report.from_cache
    assert other.fingerprint != first.fingerprint == again.fingerprint


def test_too_many_bad_rows_refuse_the_start(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "bad.jsonl"
    write_with_bad_rows(data)
    refusal = r"data\.too_many_bad_rows\(num_bad=8, num_rows=100, percent=8.*2 wrong type \(bad"
    with pytest.raises(ValueError, match=refusal) as caught:
        pipeline(data, cache, over_length="quarantine").prepare()
    listed = Path(str(caught.value).rpartition("data.skipped_rows_listed(file=")[2].rstrip(")"))
    assert len(listed.read_text("utf-8").splitlines()) == 8
    again = pipeline(data, cache, over_length="quarantine", max_bad_rows_percent=8)
    assert again.report.from_cache


def test_no_end_is_shown_where_every_answer_was_cut(tmp_path: Path, cache: Path) -> None:
    """What stands at the limit then is a chance word, and nothing that generation stops at."""
    rows = [{"question": "Q", "answer": f"word {n} " * 300} for n in range(20)]
    report = pipeline(write_jsonl(tmp_path / "a.jsonl", rows), cache).report
    assert report.truncated == 20
    assert report.end_tokens == {}
    text = "\n".join(report.lines())
    assert "data.trained_token_share" in text
    assert "data.answers_end_with" not in text


def test_over_long_rows_lose_their_end_and_are_counted(tmp_path: Path, cache: Path) -> None:
    long = "word " * 300
    extra = [{"question": "Q", "answer": long}, {"question": long, "answer": "A"}]
    data = write_jsonl(tmp_path / "a.jsonl", [*pairs(60), *extra])
    cut = pipeline(data, cache)
    assert rows_used(cut.report) == 61
    assert cut.report.truncated == 1
    assert cut.report.quarantine.counts == {reasons.OVER_LONG: 1}  # its whole answer is cut off
    lines = "\n".join(cut.report.lines())
    assert re.search(r"data\.rows_truncated\(.*512.*a\.jsonl:61", lines)
    assert "a.jsonl:62: over-long" in lines
    assert max(len(e.input_ids) for b in cut.train_batches(0, 0, 8) for e in b) <= 512
    assert list(cut.report.end_tokens) == ["<|endoftext|>"]  # not what the cut answer ends with
    assert "data.needs_chat_template" not in lines  # the tokenizer has none


def test_over_long_rows_can_be_set_aside_or_lose_their_beginning(
    tmp_path: Path, cache: Path
) -> None:
    rows = [*pairs(30), {"question": "Q", "answer": "word " * 300}]
    data = write_jsonl(tmp_path / "a.jsonl", rows)
    kept = pipeline(data, cache, over_length="quarantine")
    assert kept.report.quarantine.counts == {reasons.OVER_LONG: 1}
    cut = pipeline(data, cache, over_length="truncate", max_length=64)
    assert rows_used(cut.report) == 31
    assert (cut.report.truncated, cut.report.truncated_examples) == (1, ["a.jsonl:31"])
    assert "data.rows_truncated" in str(cut.report.lines())
    assert cut.stop_token_ids == [cut.tokenizer.eos_token_id]  # not what the cut answer ends with
    assert max(len(e.input_ids) for b in cut.train_batches(0, 0, 8) for e in b) <= 64


def test_the_same_row_is_always_on_the_same_side(tmp_path: Path, cache: Path) -> None:
    few = pipeline(write_jsonl(tmp_path / "few.jsonl", pairs(100)), cache)
    many = pipeline(write_jsonl(tmp_path / "many.jsonl", pairs(300)[::-1]), cache)
    assert set(held_out(few)) <= set(held_out(many))
    assert set(epoch(few)) <= set(epoch(many))
    assert 15 <= len(held_out(many)) <= 45


def test_duplicates_are_never_on_both_sides(tmp_path: Path, cache: Path) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", pairs(60) + pairs(60))
    prepared = pipeline(data, cache, validation_split=0.3)
    assert not set(epoch(prepared)) & set(held_out(prepared))
    assert prepared.report.leaked == 0
    assert prepared.report.duplicates == prepared.report.num_train // 2
    assert "data.rows_repeated(" in "\n".join(prepared.report.lines())


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("split", [0.05, 0.9])
def test_few_rows_are_on_both_sides_where_they_can(
    tmp_path: Path, cache: Path, count: int, split: float
) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", pairs(count))
    prepared = pipeline(data, cache, validation_split=split)
    assert prepared.num_examples >= 1
    assert len(held_out(prepared)) == prepared.report.num_evaluation >= min(1, count - 1)
    assert len({*epoch(prepared), *held_out(prepared)}) == count
    assert len(prepared.evaluation_rows()) == prepared.report.num_evaluation


def test_a_split_that_equal_rows_make_uneven_is_reported(tmp_path: Path, cache: Path) -> None:
    data = write_jsonl(tmp_path / "few.jsonl", pairs(3) * 60)
    few = pipeline(data, cache, validation_split=0.1)
    share = round(100 * few.report.num_evaluation / 180)
    assert share == 33
    uneven = "data.uneven_split("
    [note] = [line for line in few.report.lines() if uneven in line]
    assert re.search(r"percent=33\.3\d*, wanted=10", note)
    many = pipeline(write_jsonl(tmp_path / "many.jsonl", pairs(200)), cache, validation_split=0.1)
    assert not [line for line in many.report.lines() if uneven in line]


@pytest.mark.parametrize(
    ("wanted", "num_held_out", "num_train", "percent"),
    [
        *((0.2, 37, 63, None), (0.2, 38, 62, 38.0), (0.2, 3, 97, None), (0.2, 2, 98, 2.0)),
        *((0.2, 0, 100, None), (0.0, 9, 1, None), (0.5, 1, 1, None)),
    ],
)
def test_a_split_is_uneven_beyond_what_chance_makes_of_it(
    wanted: float, num_held_out: int, num_train: int, percent: float | None
) -> None:
    """Four standard deviations, of 4% each for a hundred rows, and one row."""
    notes = module._uneven_split(wanted, num_held_out, num_train)
    noted = f"data.uneven_split(percent={percent}, wanted={100 * wanted})"
    assert notes == [noted] * (percent is not None)


def test_a_stream_of_few_rows_is_left_as_chance_divides_it(tmp_path: Path, cache: Path) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", pairs(6))
    prepared = pipeline(data, cache, streaming=True, validation_split=1e-9)
    assert (len(epoch(prepared)), held_out(prepared), prepared.evaluation_rows()) == (6, [], [])
    with pytest.raises(ValueError, match=r"data\.no_rows_left"):
        pipeline(data, cache, streaming=True, validation_split=1 - 1e-9).prepare()


def test_a_fingerprint_is_of_tokens_contents_and_windows_of_the_rows_to_train_on(
    tmp_path: Path, cache: Path
) -> None:
    def fingerprint(*answers: str, **settings: Any) -> str:
        rows = [{"question": f"Q{n}", "answer": answer} for n, answer in enumerate(answers)]
        data = write_jsonl(tmp_path / "a.jsonl", rows)
        return pipeline(data, cache, **{"validation_split": 0, **settings}).fingerprint

    long = "word " * 300
    rows = ("A", "B", "C", long)
    whole, stream = {"max_length": 2000}, {"streaming": True, "buffer_size": 2}
    found = [
        fingerprint(*rows),
        fingerprint(*rows, **whole),  # other tokens of the same contents
        fingerprint("A", "B", "C", f"{long}!"),  # the same tokens, once cut
        fingerprint(*rows, **stream),
        fingerprint(*rows, **stream | {"buffer_size": 3}),
    ]
    assert len({*found}) == len(found)
    for number in range(2):
        other = write_jsonl(tmp_path / f"held_out{number}.jsonl", pairs(3, number))
        assert fingerprint(*rows, eval_path=str(other)) == found[0]


def test_held_out_rows_of_other_columns_are_noted_with_their_reason(
    tmp_path: Path, cache: Path
) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", pairs(9))
    other = [{"query": row["question"], "response": row["answer"]} for row in pairs(3, 20)]
    for rows, shape, reason in (
        (other, "qa", "data.recognized_pair(prompt=query, answer=response)"),
        ([{"text": "T"}] * 2, "text", "data.recognized_plain_text(column=text)"),
        (pairs(3, 20), "", ""),
    ):
        held = write_jsonl(tmp_path / "b.jsonl", rows)
        notes = pipeline(data, cache, eval_path=str(held)).report.notes
        noted = f"data.held_out_shape_differs(shape={shape}, reason={reason})"
        assert notes == [noted] * bool(shape)


def test_what_was_left_out_of_the_folders_of_both_sides_is_noted(
    tmp_path: Path, cache: Path
) -> None:
    for side in ("train", "test"):
        write_jsonl(tmp_path / side / f"{side}.jsonl", pairs(5, 50 * (side == "test")))
        (tmp_path / side / f"{side}.bin").write_bytes(b"?")
    notes = pipeline(tmp_path / "train", cache, eval_path=str(tmp_path / "test")).report.notes
    assert [re.findall(r"\w+\.bin", note) for note in notes] == [["train.bin"], ["test.bin"]]


def test_no_split_holds_nothing_out(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache, validation_split=0)
    assert prepared.num_examples == 100
    assert held_out(prepared) == []
    assert prepared.evaluation_rows() == prepared.questions() == []


def test_held_out_data_of_its_own(data: Path, tmp_path: Path, cache: Path) -> None:
    other = [{"instruction": r["question"], "output": r["answer"]} for r in pairs(12, start=90)]
    eval_path = write_jsonl(tmp_path / "eval.jsonl", other)
    for settings in ({}, {"streaming": True}):
        prepared = pipeline(data, cache, eval_path=str(eval_path), **settings)
        assert prepared.num_examples == 100
        assert len(held_out(prepared)) == 12
        assert prepared.report.leaked == 10
        text = "\n".join(prepared.report.lines())
        assert re.search(r"data\.rows_also_held_out\(count=10\)", text)
        assert re.search(r"data\.held_out_shape_differs\(.*alpaca", text)


def test_a_template_that_prompts_otherwise_than_it_teaches_is_reported(
    data: Path, cache: Path
) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
        "{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}"
        "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}Answer: {% endif %}"
    )
    report = pipeline(data, cache, chat_template=template).report
    assert any(
        re.search(r"data\.prompts_differ_in_training\(.*20.*20", note) for note in report.notes
    )


def test_a_folder_of_formats(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "mixed"
    write_jsonl(folder / "a.jsonl", pairs(20))
    lines = [f"{row['question']},{row['answer']}\n" for row in pairs(20, start=20)]
    (folder / "b.csv").write_text("question,answer\n" + "".join(lines))
    report = pipeline(folder, cache).report
    assert report.files == [
        {"name": "a.jsonl", "format": "jsonl", "rows": 20},
        {"name": "b.csv", "format": "csv", "rows": 20},
    ]
    assert rows_used(report) == 40


def test_each_row_knows_its_file(tmp_path: Path, cache: Path) -> None:
    folder, other = tmp_path / "rows", tmp_path / "held_out"
    for number, name in enumerate(("a", "b", "c")):
        write_jsonl(folder / f"{name}.jsonl", pairs(20, start=20 * number))
    for number, name in enumerate(("d", "e")):
        write_jsonl(other / f"{name}.jsonl", pairs(3, start=60 + 3 * number))
    prepared = pipeline(folder, cache, eval_path=str(other))
    places = prepared.places_of(range(60))
    assert places == [f"{name}.jsonl:{line}" for name in "abc" for line in range(1, 21)]
    held = [f"{name}.jsonl:{line}" for name in "de" for line in range(1, 4)]
    assert prepared.evaluation_places() == held


def test_plain_texts(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"Text number {n}\nhas lines." for n in range(30)))
    prepared = pipeline(tmp_path / "a.txt", cache, byte_level_tokenizer(CHATML))
    assert prepared.report.shape == "text"
    assert all(text.endswith("has lines.<|endoftext|>") for text in epoch(prepared))
    assert prepared.questions() == []


@pytest.mark.parametrize("seed", range(3))
def test_random_data_sets(tmp_path: Path, cache: Path, seed: int) -> None:
    """Whatever the rows, they are all accounted for, and every mode sees the same examples."""
    rng = np.random.RandomState(seed)
    rows: list[Any] = []
    for number in range(rng.randint(5, 120)):
        good = {"prompt": f"P {number}" + "x" * rng.randint(50), "completion": f"C {number}"}
        broken = ["{", "[]", {"prompt": "P"}, {"prompt": "P", "completion": " "}, "\t"]
        rows.append(good if rng.rand() < 0.8 else broken[rng.randint(len(broken))])
    rows.append({"prompt": "last", "completion": "one"})
    data = write_jsonl(tmp_path / "a.jsonl", rows)
    settings: dict[str, Any] = {"max_bad_rows_percent": 100, "validation_split": rng.rand() / 2}
    stored = pipeline(data, cache, **settings)
    streamed = pipeline(
        data, cache, streaming=True, buffer_size=int(rng.randint(1, 30)), **settings
    )
    good = sum(isinstance(row, dict) and len(row) == 2 and row["completion"] != " " for row in rows)
    blank = sum(row == "\t" for row in rows)
    for prepared in (stored, streamed):
        report = prepared.report
        assert rows_used(report) == good
        assert rows_used(report) + report.quarantine.total == report.rows_read == len(rows) - blank
    everything = [*epoch(stored), *held_out(stored)]
    assert len(set(everything)) == len(everything) == good
    assert sorted(everything) == sorted([*epoch(streamed), *held_out(streamed)])
    start = int(rng.randint(streamed.num_examples + 1))
    assert epoch(streamed, 2, start) == epoch(streamed, 2)[start:]


def test_a_document_may_divide_its_rows(tmp_path: Path, cache: Path) -> None:
    rows = pairs(40)
    both = tmp_path / "both.json"
    both.write_text(json.dumps({"test": rows[30:36], "train": rows[:30], "validation": rows[36:]}))
    report = pipeline(both, cache, validation_split=0.5).report
    assert (report.num_train, report.num_evaluation) == (30, 4)
    assert "data.split_of_file_held_out(file=both.json, split=validation)" in report.notes
    report = pipeline(both, cache, validation_split=0).report
    assert (report.num_train, report.num_evaluation) == (30, 0)
    assert "data.split_of_file_unused(file=both.json, split=validation)" in report.notes
    apart = write_jsonl(tmp_path / "apart.jsonl", rows[:8])
    report = pipeline(both, cache, eval_path=str(apart)).report
    assert (report.num_train, report.num_evaluation) == (30, 8)
    measured = pipeline(apart, cache, eval_path=str(both)).report  # as `temper eval` does
    assert measured.num_evaluation == 4
    both.write_text(json.dumps({"train": rows[:30], "test": []}))
    assert pipeline(both, cache).report.num_evaluation in range(1, 10)


@pytest.mark.parametrize(("others", "shared"), [([], "Be brief."), (["one"], None)])
def test_the_system_prompt_of_all_rows_is_known(
    others: list[str], shared: str | None, tmp_path: Path, cache: Path
) -> None:
    def chat(number: int) -> dict[str, Any]:
        texts = (("system", "Be brief."), ("user", f"Q{number}"), ("assistant", "A"))
        return {"messages": [{"role": role, "content": text} for role, text in texts]}

    rows = [chat(n) for n in range(8)]
    rows += [{"messages": chat(9)["messages"][1:]}] * bool(others)
    data = write_jsonl(tmp_path / "a.jsonl", rows)
    assert pipeline(data, cache).report.system_prompt == shared
    passes_over = CHATML.replace("messages %}", "messages if m.role != 'system' %}")
    unread = pipeline(data, cache, byte_level_tokenizer(passes_over))
    assert unread.report.system_prompt is None


def test_answers_that_the_tokenizer_changes_are_counted(tmp_path: Path, cache: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.normalizer = Lowercase()
    for answers, equal in ((("low", "High", "HIGHER"), 0), (("low", "High", "HIGH"), 2)):
        rows = [{"question": "q", "answer": answer} for answer in answers]
        data = write_jsonl(tmp_path / "a.jsonl", rows)
        prepared = pipeline(data, cache, tokenizer, validation_split=0)
        if equal:
            sentence = r"answers_equal_to_tokenizer\(num_equal=2, num_rows=3, .*a\.jsonl:2"
            with pytest.raises(ValueError, match=sentence):
                prepared.prepare()
            continue
        [line] = [one for one in prepared.report.lines() if "tokenizer_changed_answers" in one]
        assert line.startswith("data.tokenizer_changed_answers(count=2, ")
        assert "a.jsonl:2" in line


def test_content_numbers_are_kept_by_side(tmp_path: Path, cache: Path) -> None:
    """Equal rows have equal numbers, whatever file or side they are on."""
    data = write_jsonl(tmp_path / "a.jsonl", pairs(8) + pairs(3))
    other = write_jsonl(tmp_path / "b.jsonl", pairs(4, start=6))
    for settings in ({}, {"streaming": True}):
        prepared = pipeline(data, cache, eval_path=str(other), **settings)
        train, held = (prepared.contents(held_out=side) for side in (False, True))
        assert train is not None
        assert held is not None
        assert (len(train), len({*train}), len(held), len({*held})) == (11, 8, 4, 4)
        assert train[8:].tolist() == train[:3].tolist()
        assert held[:2].tolist() == train[6:8].tolist()
        assert not {*held[2:].tolist()} & {*train.tolist()}


def test_a_few_places_of_cut_rows_are_named_and_all_are_counted(
    tmp_path: Path, cache: Path
) -> None:
    rows = [{"question": f"Q{n}", "answer": "word " * 300} for n in range(5)]
    data = write_jsonl(tmp_path / "a.jsonl", [*pairs(3), *rows])
    report = pipeline(data, cache, validation_split=0, max_length=64).report
    assert report.truncated == 5
    assert report.truncated_examples == ["a.jsonl:4", "a.jsonl:5", "a.jsonl:6"]


def test_all_held_out_rows_of_one_content_stand_on_their_side(tmp_path: Path, cache: Path) -> None:
    """Where none is held out by chance, the row that comes first takes its equals along; where all
    are, those of one content are trained on."""
    data = write_jsonl(tmp_path / "a.jsonl", [row for row in pairs(3) for _ in range(4)])
    for split in (1e-9, 1 - 1e-9):
        prepared = pipeline(data, cache, validation_split=split)
        few, many = sorted((epoch(prepared), held_out(prepared)), key=len)
        assert (len(few), len({*few}), len(many), len({*many})) == (4, 1, 8, 2)
        assert (few == held_out(prepared)) is (split < 0.5)
        assert len(prepared.evaluation_rows()) == len(held_out(prepared))
        answers = [row.answer for row in prepared.evaluation_rows()]
        assert all(answer in text for answer, text in zip(answers, held_out(prepared), strict=True))
        lines = [int(place.rpartition(":")[2]) for place in prepared.evaluation_places()]
        assert lines == sorted(lines)


@pytest.mark.parametrize("training", [True, False])
def test_special_tokens_in_any_message_are_reported(
    tmp_path: Path, cache: Path, training: bool
) -> None:
    rows = [{"question": "What is <|endoftext|>?", "answer": "An end."}]
    first, second = (rows, []) if training else ([], rows)
    data = write_jsonl(tmp_path / "a.jsonl", [*pairs(5), *first])
    other = write_jsonl(tmp_path / "b.jsonl", [*pairs(5, start=9), *second])
    report = pipeline(data, cache, eval_path=str(other)).report
    assert report.special_text_rows == 1
    assert "data.special_token_rows(count=1)" in "\n".join(report.lines())


UNDETERMINED = CHATML.replace("m['content'] }}", "m['content'] | upper }}")


def chats(count: int, *more: dict[str, Any], **of_answer: Any) -> list[dict[str, Any]]:
    """Conversations of two rounds, which all differ."""
    return [
        {
            "messages": [
                *more,
                {"role": "user", "content": f"question {n}"},
                {"role": "assistant", "content": "first"},
                {"role": "user", "content": f"and {n}"},
                {"role": "assistant", "content": "second", **of_answer},
            ]
        }
        for n in range(count)
    ]


def notes_of(folder: Path, rows: list[Any], template: str, **settings: Any) -> list[str]:
    """The notes of a report, without those on images and files."""
    data = write_jsonl(folder / "rows.jsonl", rows)
    settings = {"validation_split": 0, **settings}
    tokenizer = byte_level_tokenizer(template)
    return pipeline(data, folder / "cache", tokenizer, **settings).report.notes


def test_rows_are_counted_whose_texts_are_undetermined(tmp_path: Path) -> None:
    """Each once, however many of its texts are."""
    [note] = notes_of(tmp_path, chats(3), UNDETERMINED, train_on="all")
    assert note == (
        "data.template_output_undetermined(count=3, "
        "example=data.part_message_text(number=1, role=user) of rows.jsonl:1)"
    )


def test_rows_whose_reasoning_is_written_in_another_form_are_counted(tmp_path: Path) -> None:
    template = CHATML.replace("{{ m['content'] }}", "{{ m.thinking }}{{ m['content'] }}")
    rows = [*chats(2, reasoning="hm"), *chats(4)]
    assert "data.reasoning_rewritten(count=2)" in notes_of(tmp_path, rows, template)
    assert notes_of(tmp_path / "none", chats(4), template) == []


@pytest.mark.parametrize(
    ("template", "addition"),
    [
        ("{{ strftime_now('%Y') }}" + CHATML, "data.template_adds_date()"),
        (MARKED, "data.template_adds_answer_end(end=<|im_end|>)"),
        ("You are a helper." + CHATML, "data.template_adds_preamble(text=You are a helper.)"),
        (
            MARKED.replace("{% generation %}", "")
            .replace("<|im_start|>{{ m['role'] }}\n{% if", "{% if", 1)
            .replace(
                "{{ m['content'] }}{% endgeneration %}{% else %}",
                "<|im_start|>{% generation %}assistant\n{{ m['content'] }}<|im_end|>\n"
                "{% endgeneration %}{% else %}<|im_start|>user\n",
            )
            .replace("{% endif %}<|im_end|>\n{% endfor %}", "<|im_end|>\n{% endif %}{% endfor %}"),
            "data.template_trains_prompt_part(text=assistant\n)",
        ),
    ],
)
def test_what_a_template_adds_to_the_rows_is_noted(
    tmp_path: Path, template: str, addition: str
) -> None:
    wanted = [f"data.template_adds(additions={addition})"]
    assert notes_of(tmp_path, chats(4), template) == wanted
    whole = notes_of(tmp_path, chats(4), template, train_on="all")
    assert whole == [note for note in wanted if "trains_prompt_part" not in note]
    texts = [{"text": f"Text {n}"} for n in range(4)]
    assert notes_of(tmp_path / "texts", texts, template) == []


def test_what_only_the_prompt_leaves_out_is_noted_with_its_first_row(tmp_path: Path) -> None:
    """Reasoning is left out of prompts on purpose."""
    writes = "{% if not add_generation_prompt or m.role != 'system' %}"
    template = CHATML.replace("<|im_start|>{{", writes + "<|im_start|>{{", 1)
    template = template.replace("<|im_end|>\n", "<|im_end|>\n{% endif %}", 1)
    system = {"role": "system", "content": "Be brief."}
    rows = [*chats(2), *chats(25, system)[2:]]
    notes = notes_of(tmp_path, rows, template, train_on="all")
    [lost] = [note for note in notes if note.startswith("data.lost_in_generation_prompt(")]
    assert "(kind=data.lost_system_message(), count=18," in lost  # of 20 that are tried
    assert "place=rows.jsonl:3," in lost
    assert "data.prompts_differ_in_training(num_differing=18, num_checked=20)" in notes
    never = CHATML.replace("{{ m['content'] }}", "{{ m['content'] if m.role != 'system' }}")
    assert notes_of(tmp_path / "never", rows, never) == []  # one of each row's own losses


def test_reasoning_that_a_prompt_leaves_out_on_purpose_is_not_noted(tmp_path: Path) -> None:
    rows = chats(3)
    for row in rows:
        row["messages"][1]["reasoning"] = "hm"
    thought = "{% if m.reasoning and not add_generation_prompt %}({{ m.reasoning }}){% endif %}"
    template = CHATML.replace("{{ m['content'] }}", thought + "{{ m['content'] }}")
    notes = notes_of(tmp_path, rows, template, train_on="all")
    assert notes == ["data.prompts_differ_in_training(num_differing=3, num_checked=3)"]


def test_that_nothing_is_held_out_is_noted_if_a_split_is_set(tmp_path: Path, cache: Path) -> None:
    note = "data.nothing_held_out()"
    same_rows = write_jsonl(tmp_path / "same.jsonl", pairs(1) * 300)
    other = write_jsonl(tmp_path / "other.jsonl", pairs(9))
    for data, split, is_noted in (
        (same_rows, 0.2, True),
        (same_rows, 0, False),
        (other, 0.2, False),
    ):
        notes = pipeline(data, cache, validation_split=split).report.notes
        assert notes == [note] * is_noted


def test_messages_without_text_and_those_of_weight_0_are_counted_one_by_one(
    tmp_path: Path,
) -> None:
    rows = chats(6)
    rows[2]["messages"][1]["weight"] = rows[3]["messages"][1]["weight"] = 0
    rows[3]["messages"][1]["content"] = rows[4]["messages"][1]["content"] = " "
    called = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {}}]}
    rows[5]["messages"][1] = called  # says something
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m.tool_calls }}")
    notes = notes_of(tmp_path, rows, template)
    assert "data.answers_with_zero_weight(count=2)" in notes
    assert "data.empty_answers(count=2)" in notes


def test_columns_that_nothing_uses_are_named_by_how_often_they_occur(
    tmp_path: Path, cache: Path
) -> None:
    rows: list[dict[str, Any]] = pairs(30)
    for number, row in enumerate(rows):
        row |= {f"c{n:02}": "x" for n in range(14) if number >= n}
        row["task"] = None
    data = write_jsonl(tmp_path / "a.jsonl", rows)
    named = ", ".join(f"c{n:02}" for n in range(12))
    assert pipeline(data, cache).report.unused_columns == f"data.more_names(names={named}, count=2)"
    few = [{k: v for k, v in row.items() if k not in ("c12", "c13")} for row in rows]
    data = write_jsonl(tmp_path / "b.jsonl", few)
    assert pipeline(data, cache).report.unused_columns == named


def test_fields_that_no_template_reads_are_reported_with_the_reason(tmp_path: Path) -> None:
    rows = chats(3, mood="good")
    for template, reader in (
        (CHATML, "template_ignores_field"),
        (None, "field_needs_chat_template"),
    ):
        data = write_jsonl(tmp_path / "rows.jsonl", rows)
        report = pipeline(data, tmp_path / "cache", byte_level_tokenizer(template)).report
        assert report.unread == f"data.unused_fields(fields=mood, reader=data.{reader}())"


def test_what_the_first_rows_lose_is_kept_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUM_LOSSES", 2)
    read = [
        {**row, "messages": [*row["messages"], {"role": "user", "content": "x"}]}
        for row in chats(3)
    ]
    data = write_jsonl(tmp_path / "read.jsonl", [*chats(1), *read])
    report = pipeline(data, tmp_path / "cache", validation_split=0).report
    assert [*report.losses] == ["read.jsonl:2", "read.jsonl:3"]
    assert report.losses["read.jsonl:3"] == [
        "data.lost_whole(what=data.part_message_text(number=5, role=user), text=x)"
    ]
    assert report.left_out[0]["rows"] == 3


def test_a_context_in_either_file_is_known(tmp_path: Path, cache: Path) -> None:
    plain = write_jsonl(tmp_path / "a.jsonl", pairs(5))
    with_context = write_jsonl(tmp_path / "b.jsonl", [{**r, "context": "C"} for r in pairs(5, 9)])
    for data, other, has_context in (
        (plain, plain, False),
        (with_context, plain, True),
        (plain, with_context, True),
    ):
        assert pipeline(data, cache, eval_path=str(other)).report.has_context is has_context
