"""What the hunt found: the numbers are those of the threads in threads.md.

Only threads that fell short have a test here; log.md says what became of each of the others.
"""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AddedToken

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.encoding.chat_format import TemplateFormat
from infrastructure.data.encoding.token_survival import (
    WHITE_SPACE,
    Survivals,
    TokenSurvival,
)
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import BadRow, Conversation, Row, Turn
from infrastructure.data.readers.sources import discover
from infrastructure.training.methods.method_data import MethodData, read_data
from tests.data.builders import CHATML, byte_level_tokenizer, pipeline, write_jsonl

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
    given, read_back = survivals.firsts[WHITE_SPACE][1].split(", decoded=")
    assert given.startswith("data.text_decoded_differently(text=")
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
        learned_with = f"data.template_trains_prompt_part(text={supplied})"
        assert any(learned_with in note for note in notes) == bool(supplied)


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


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_h66_a_carriage_return_within_a_cell_is_part_of_it(
    suffix: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.{suffix}"
    separator = "\t" if suffix == "tsv" else ","
    cells = [("q0", "a\rb"), ("q1", "plain"), ("é\r", "c"), ('"q3\rx"', "d")]
    lines = [separator.join(row) for row in [("question\r", "answer"), *cells]]
    path.write_bytes("".join(line + ending for line in lines).encode())
    (file,) = discover(str(path))
    rows = list(file.rows())
    assert [tuple(row.values.values()) for row in rows if isinstance(row, Row)] == [
        ("q0", "a\rb"),
        ("q1", "plain"),
        ("é\r", "c"),
        ("q3\rx", "d"),
    ]
    first, second, *_ = rows
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert list(first.values) == ["question\r", "answer"]
    assert next(file.rows(Start(second.offset, second.line))) == second


def judged(folder: Path, labels: list[bool]) -> MethodData:
    rows = [{"prompt": f"{n}?", "completion": f"a{n}", "label": it} for n, it in enumerate(labels)]
    path = write_jsonl(folder / "judged.jsonl", rows)
    config = DeploymentConfig(
        data={"path": str(path), "validation_split": 0.0}, training={"method": "kto"}
    )
    return read_data(config, byte_level_tokenizer(CHATML), folder / "bad.jsonl")


def test_h74_labels_of_one_kind_are_named(tmp_path: Path) -> None:
    mixed = judged(tmp_path, [True, True, False, True, False, True])
    assert mixed.num_good == 4
    assert mixed.notes == []
    for label in (True, False):
        data = judged(tmp_path, [label] * 6)
        assert (data.num_good, len(data.train), len(data.notes)) == (6 * label, 6, 1)


@pytest.mark.parametrize(
    ("marks", "learned"),
    [
        ({"loss": False}, "Right."),
        ({"loss": True}, "Wrong.Right."),
        ({"loss": None}, "Wrong.Right."),
        ({"loss": 0}, "Wrong.Right."),  # a number that was measured
        ({"loss": True, "weight": 0}, "Right."),
    ],
)
def test_h82_the_loss_of_a_message_decides_whether_it_is_learned(
    marks: dict[str, object], learned: str, tmp_path: Path
) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "content": "Wrong.", **marks},
                {"role": "user", "content": "Again."},
                {"role": "assistant", "content": "Right."},
            ]
        }
        for n in range(12)
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    tokenizer = byte_level_tokenizer(CHATML)
    with closing(pipeline(path, tmp_path / "cache", tokenizer, validation_split=0.0)) as data:
        report = data.prepare()
        (row, *_), *_ = data.train_batches(0, 0, 1)
    text = tokenizer.decode(row.input_ids[row.supervised]).replace("<|im_end|>", "")
    assert text.replace("\n", "") == learned
    is_named = any("loss" in line for line in report.lines(is_verbose=False))
    assert is_named == (marks["loss"] == 0 and not isinstance(marks["loss"], bool))


FUNCTION = {"name": "weather", "arguments": {"city": "Rome"}}
SCHEMA = {"name": "weather", "description": "Ask.", "parameters": {"type": "object"}}
READS = {
    "wrapped alone": ("call.function.name", "tool.function.name"),
    "bare alone": ("call['name'] + ''", "tool['name'] + ''"),
    "both": ("(call.function or call).name", "(tool.function or tool).name"),
}


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_h87_a_template_gets_calls_and_tools_in_the_form_that_it_takes(
    reads: str, is_wrapped: bool
) -> None:
    call, tool = READS[reads]
    template = (
        "{% for tool in tools or [] %}<tool>{{ " + tool + " }}</tool>{% endfor %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% for call in m.tool_calls or [] %}<call>{{ " + call + " }}</call>{% endfor %}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    form = TemplateFormat(byte_level_tokenizer(template))
    given = {"type": "function", "function": FUNCTION} if is_wrapped else FUNCTION
    listed = {"type": "function", "function": SCHEMA} if is_wrapped else SCHEMA
    turns = (Turn("user", "Go"), Turn("assistant", "", json.dumps({"tool_calls": [given]})))
    inputs = json.dumps({"tools": [listed]})
    text = form.text_of(Conversation(turns, inputs=inputs))
    assert "<tool>weather</tool>" in text
    assert "<call>weather</call>" in text
    if reads == "both":  # nothing is changed without need
        assert form.tools([listed]) == [listed]
        assert form.message(turns[1])["tool_calls"] == [given]


def lossy_tokenizer(text: str) -> Any:
    """Metaspace BPE of the characters of a text and of no others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([text] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )


@pytest.mark.parametrize("method", ["sft", "dpo", "kto", "grpo"])
def test_h105_what_the_tokenizer_cannot_read_of_a_question_is_named(
    method: str, tmp_path: Path
) -> None:
    """The line break that the plain format writes between question and answer is no user's."""
    tokenizer = lossy_tokenizer("What is 0 1 2 3 4 5 6 7 8 9? It is so. Never.")
    for odd, number in ((set[int](), 0), ({2, 7, 11}, 3)):
        rows = [
            {
                "prompt": f"What is\n{n}?" if n in odd else f"What is {n}?",
                **{
                    "sft": {"completion": f"It is {n}."},
                    "dpo": {"chosen": f"It is {n}.", "rejected": "Never."},
                    "kto": {"completion": f"It is {n}.", "label": n % 2 == 0},
                    "grpo": {"answer": f"It is {n}."},
                }[method],
            }
            for n in range(14)
        ]
        path = write_jsonl(tmp_path / "rows.jsonl", rows)
        if method == "sft":
            cache = tmp_path / str(number)
            with closing(pipeline(path, cache, tokenizer, validation_split=0.0)) as data:
                notes = data.prepare().lines(is_verbose=False)
        else:
            settings = {"path": str(path), "validation_split": 0.0}
            config = DeploymentConfig(data=settings, training={"method": method})
            notes = read_data(config, tokenizer, tmp_path / "bad.jsonl").notes
        found = [line for line in notes if "data.text_without_tokens" in line]
        assert len(found) == bool(number)
        assert all(f"(count={number}, " in line and "text=What is\n2?" in line for line in found)
    assert TokenSurvival(byte_level_tokenizer(CHATML)).lost_of(["字\n"], "字\n", []) == ""
    ids = tokenizer("What is\n2?")["input_ids"]  # as a template that strips has written it
    assert TokenSurvival(tokenizer).lost_of([" What is\n2? \n"], "What is\n2?", ids)


def test_h115_where_no_row_is_left_the_reason_is_given(tmp_path: Path) -> None:
    reason = r"data\.no_rows_left.*12 wrong type \(rows.jsonl:1"
    tokenizer = byte_level_tokenizer(CHATML)
    pairs = [{"prompt": f"{n}?", "chosen": n + 0.5, "rejected": "no"} for n in range(12)]
    path = write_jsonl(tmp_path / "rows.jsonl", pairs)
    settings = {"path": str(path), "max_bad_rows_percent": 100}
    config = DeploymentConfig(data=settings, training={"method": "dpo"})
    with pytest.raises(ValueError, match=reason):
        read_data(config, tokenizer, tmp_path / "bad.jsonl")
    write_jsonl(path, [{"prompt": f"{n}?", "completion": n + 0.5} for n in range(12)])
    with (
        closing(pipeline(path, tmp_path / "cache", tokenizer, max_bad_rows_percent=100)) as data,
        pytest.raises(ValueError, match=reason),
    ):
        data.prepare()


def test_h112_an_answer_without_a_question_gets_the_column_for_whole_texts(tmp_path: Path) -> None:
    answers = [{"messages": [{"role": "assistant", "content": f"Text {n}."}]} for n in range(12)]
    path = write_jsonl(tmp_path / "rows.jsonl", answers)
    tokenizer = byte_level_tokenizer(CHATML)
    with (
        closing(pipeline(path, tmp_path / "cache", tokenizer)) as data,
        pytest.raises(ValueError, match=r"data\.put_whole_text_in_column"),
    ):
        data.prepare()
    write_jsonl(path, [{"text": f"Text {n}."} for n in range(12)])
    with closing(pipeline(path, tmp_path / "cache", tokenizer, validation_split=0.0)) as data:
        data.prepare()
        (row, *_), *_ = data.train_batches(0, 0, 1)
    assert "Text" in tokenizer.decode(row.input_ids)


def lora_of(base: Path, folder: Path) -> Path:
    """A LoRA whose matrices hold NaN."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["q_proj"])
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(math.nan)
    model.save_pretrained(folder)
    return folder


def damaged(base: Path, folder: Path, weight: str, value: float, *, is_factor: bool) -> Path:
    """A model in several files, in one of which a value is another one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(base).save_pretrained(folder, max_shard_size="100KB")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    shard = folder / index[weight]
    weights = load_file(shard)
    if is_factor:
        weights[weight] *= value
    else:
        weights[weight].view(-1)[7] = value
    save_file(weights, shard, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("weight", "value", "is_factor", "refusal"),
    [
        ("model.layers.1.mlp.up_proj.weight", math.nan, False, "weights_not_finite"),
        ("lm_head.weight", math.inf, False, "weights_not_finite"),
        ("lm_head.weight", -math.inf, True, "weights_not_finite"),
        ("model.norm.weight", 3e38, True, "model_not_finite"),  # finite, but too large
        ("lora_B", math.nan, False, "weights_not_finite"),
    ],
)
def test_h138_a_model_that_computes_nan_is_refused_where_it_answers_or_is_measured(
    weight: str,
    value: float,
    is_factor: bool,
    refusal: str,
    saved_llama: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "model"
    if weight == "lora_B":
        lora_of(saved_llama, folder)
    else:
        damaged(saved_llama, folder, weight, value, is_factor=is_factor)
    path = write_jsonl(
        tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "completion": f"{n}"} for n in range(12)]
    )
    output = ["--output", str(tmp_path / "runs"), "--device", "cpu"]
    for words in (["ask", str(folder), "Who?"], ["eval", str(folder), str(path)]):
        assert main([*words, *output]) == 2
        shown, beside = capsys.readouterr()
        assert shown in ("", "Loading PyTorch\n")
        assert f"evaluation.{refusal}(model={folder}" in beside
        assert (weight in beside) == (refusal == "weights_not_finite")
    assert not list(tmp_path.rglob("evaluations/*"))
