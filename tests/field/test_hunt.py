"""What the hunt found: the numbers are those of the threads in threads.md.

Only threads that fell short have a test here; log.md says what became of each of the others.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from transformers import AddedToken

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.data.encoding.chat_format import TemplateFormat
from infrastructure.training.data.encoding.token_survival import WHITE_SPACE, Survivals
from infrastructure.training.data.readers.line_reader import Start
from infrastructure.training.data.readers.rows import BadRow, Row
from infrastructure.training.data.readers.sources import discover
from infrastructure.training.methods.method_data import MethodData, read_data
from tests.training.data.builders import CHATML, byte_level_tokenizer, pipeline, write_jsonl

HEADER = "question\tanswer\n"
MARKED_HEADER = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
SUPPLIED = "<|im_start|>assistant\n<think>\n"


def test_h1_spaces_beside_a_control_token_are_shown_where_they_are_lost(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(CHATML)
    call = AddedToken("<call>", lstrip=True, rstrip=True, normalized=False, special=True)
    tokenizer.add_tokens([call], special_tokens=True)
    rows = [{"question": f"{n}?", "answer": f"Use   <call>   now {n}"} for n in range(20)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with closing(pipeline(path, tmp_path / "cache", tokenizer, validation_split=0.0)) as data:
        survivals = Survivals.from_json(data.prepare().survivals)
    assert survivals.rows == {WHITE_SPACE: 20}
    given, read_back = survivals.firsts[WHITE_SPACE][1].split(" is read back as ")
    assert "Use   <call>   now 0" in given
    assert "Use<call>now 0" in read_back


def pairs_of(folder: Path, method: str, long: set[int], **data: Any) -> MethodData:
    """40 pairs; the answers of some differ in their last word alone."""
    rows = [
        {
            "prompt": f"What is {n}?",
            "chosen": "word " * (90 * (n in long)) + "good",
            "rejected": "word " * (90 * (n in long)) + "bad",
        }
        for n in range(40)
    ]
    path = write_jsonl(folder / "pairs.jsonl", rows)
    settings = {"path": str(path), "validation_split": 0.0, "max_length": 96, **data}
    config = DeploymentConfig(data=settings, training={"method": method})
    return read_data(config, byte_level_tokenizer(CHATML), folder / "bad.jsonl")


@pytest.mark.parametrize("method", ["dpo", "orpo"])
def test_h26_pairs_that_are_equal_once_cut_are_set_aside(method: str, tmp_path: Path) -> None:
    data = pairs_of(tmp_path, method, {3})
    assert [row["prompt"][0]["content"] for row in data.train] == [
        f"What is {n}?" for n in range(40) if n != 3
    ]
    assert sum(data.quarantine.counts.values()) == 1
    assert data.num_cut == 0
    with pytest.raises(ValueError, match="max_length"):
        pairs_of(tmp_path, method, set(range(40)))
    assert len(pairs_of(tmp_path, method, {3}, max_length=600).train) == 40


def test_h26_pairs_that_differ_before_the_cut_are_kept(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{n}?", "chosen": f"good {'word ' * 90}", "rejected": f"bad {'word ' * 90}"}
        for n in range(8)
    ]
    path = write_jsonl(tmp_path / "pairs.jsonl", rows)
    settings = {"path": str(path), "validation_split": 0.0, "max_length": 96}
    config = DeploymentConfig(data=settings, training={"method": "dpo"})
    data = read_data(config, byte_level_tokenizer(CHATML), tmp_path / "bad.jsonl")
    assert (len(data.train), data.num_cut, data.quarantine.total) == (8, 8, 0)


def test_h30_learned_text_that_the_generation_prompt_holds_is_named(tmp_path: Path) -> None:
    """The marks of a template decide what is learned; where they hold the end of the prompt, the
    notes that the console shows name it."""
    path = write_jsonl(
        tmp_path / "rows.jsonl",
        [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in range(20)],
    )
    for template, supplied in ((MARKED_HEADER, SUPPLIED), (CHATML, "")):
        tokenizer = byte_level_tokenizer(template)
        assert TemplateFormat(tokenizer).learned_of_prompt == supplied
        cache = tmp_path / str(len(supplied))
        with closing(pipeline(path, cache, tokenizer, validation_split=0.0)) as data:
            notes = data.prepare().notes
            (first, *_), *_ = data.train_batches(0, 0, 1)
        learned = tokenizer.decode(first.input_ids[first.supervised])
        assert learned.startswith(supplied)
        assert any(repr(supplied) in note for note in notes) == bool(supplied)


def read_tsv(path: Path, text: str) -> tuple[list[tuple[object, ...]], int]:
    """The rows of a tab-separated file, and how many are set aside; each row is read by itself,
    too."""
    path.write_text(HEADER + text)
    (file,) = discover(str(path))
    rows = list(file.rows())
    good = [row for row in rows if isinstance(row, Row)]
    for row in good:
        assert next(file.rows(Start(row.offset, row.line))) == row
    return [tuple(row.values.values()) for row in good], len(rows) - len(good)


@pytest.mark.parametrize(
    "question",
    [
        '"{n} times" it rained',  # text after a closing quote
        '"open {n}',
        'a {n}" pipe',
        '"{n}" and "{n}"',
    ],
)
@pytest.mark.parametrize("num_rows", [1, 6, 7])
def test_h60_quotes_that_mean_nothing_are_text(
    question: str, num_rows: int, tmp_path: Path
) -> None:
    written = [(question.format(n=n), f'"it is" {n}') for n in range(num_rows)]
    text = "".join("\t".join(row) + "\n" for row in written)
    assert read_tsv(tmp_path / "rows.tsv", text) == (written, 0)


def test_h60_one_line_of_other_fields_is_set_aside_alone(tmp_path: Path) -> None:
    written = [(f'"{n} times" it rained', f"a{n}") for n in range(40)]
    text = "".join("\t".join(row) + "\n" for row in written)
    assert read_tsv(tmp_path / "rows.tsv", text + "x\ty\tz\n") == (written, 1)


def test_h60_quotes_that_mean_something_are_no_text(tmp_path: Path) -> None:
    """Quoted fields, a stray quote among them, fields over several lines, and lines that a quote
    joins: as before."""
    path = tmp_path / "rows.tsv"
    quoted = "".join(f'"q{n}"\t"the ""{n}"""\n' for n in range(5))
    fields = [(f"q{n}", f'the "{n}"') for n in range(5)]
    assert read_tsv(path, quoted) == (fields, 0)
    assert read_tsv(path, quoted + '"q" x\ta\n') == (fields, 1)
    plain = "".join(f"q{n}\ta{n}\n" for n in range(5))
    rows = [(f"q{n}", f"a{n}") for n in range(5)]
    assert read_tsv(path, f'q\t"a\nb\nc"\n{plain}') == ([("q", "a\nb\nc"), *rows], 0)
    assert read_tsv(path, f'"x\ty\nz\tu\nv"\tw\n{plain}') == (rows, 3)


def test_h60_a_comma_separated_file_still_has_quotes(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('question,answer\n"1 time" it rained,a\nq,a\n')
    (file,) = discover(str(path))
    assert [isinstance(row, BadRow) for row in file.rows()] == [True, False]
