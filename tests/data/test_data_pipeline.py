"""DataPipeline on real files with real tokenizers: order, starts, cache, modes, refusals."""

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.core.errors import DataError
from infrastructure.data import data_pipeline as module
from infrastructure.data.data_pipeline import first_examples, training_texts
from infrastructure.data.encoding.augmentation import (
    AUGMENTATIONS,
    register_augmentation,
)
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.data.store.token_cache import TokenCache
from tests.data.builders import (
    CHATML,
    byte_level_tokenizer,
    epoch,
    held_out,
    metaspace_tokenizer,
    pairs,
    pipeline,
    slow_tokenizer,
    write_jsonl,
)


def test_an_epoch_holds_each_training_example_once(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache)
    train, evaluation = epoch(prepared), held_out(prepared)
    assert len(train) == prepared.num_examples
    assert len({*train, *evaluation}) == 100
    assert epoch(prepared, 1) != train
    assert sorted(epoch(prepared, 1)) == sorted(train)
    sizes = [len(batch) for batch in prepared.train_batches(0, 0, 8)]
    assert sizes == [8] * (len(train) // 8) + [len(train) % 8] * (len(train) % 8 > 0)


MODES: dict[str, dict[str, Any]] = {
    "stored": {},
    "streaming": {"streaming": True, "buffer_size": 7},
    "small memory": {"memory_size": 0},
    "augmented": {"augmentation": "shout"},
    "streaming augmented": {"streaming": True, "buffer_size": 7, "augmentation": "shout"},
}


def shout(conversation: Conversation, rng: np.random.RandomState) -> Conversation:
    """Raise the voice by a random number of marks."""
    question, *rest = conversation.turns
    louder = Turn(question.role, question.text + "!" * rng.randint(1, 20))
    return Conversation((louder, *rest), conversation.task)


@pytest.fixture
def shouting() -> Any:
    register_augmentation("shout", shout)
    yield
    AUGMENTATIONS.unregister("shout")


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("mode", MODES)
def test_any_start_gives_the_rest_of_the_epoch(data: Path, cache: Path, mode: str) -> None:
    whole = epoch(pipeline(data, cache, **MODES[mode]), 1)
    again = pipeline(data, cache, **MODES[mode])
    assert len(whole) == again.num_examples
    for start in (0, 1, 7, 8, 40, len(whole) - 1, len(whole)):
        assert epoch(again, 1, start, size=3) == whole[start:]
    assert epoch(again, 0) != whole


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("mode", MODES)
def test_order_is_fixed_by_the_seed(data: Path, cache: Path, mode: str) -> None:
    orders = [epoch(pipeline(data, cache, seed=s, **MODES[mode])) for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_streaming_gives_the_same_examples(data: Path, cache: Path) -> None:
    stored = pipeline(data, cache, task_column="task")
    streamed = pipeline(data, cache, task_column="task", streaming=True, buffer_size=9)
    assert sorted(epoch(stored)) == sorted(epoch(streamed))
    assert held_out(stored) == held_out(streamed)
    assert streamed.evaluation_rows() == stored.evaluation_rows()
    left, right = stored.report.to_dict(), streamed.report.to_dict()
    assert left.pop("fingerprint") != right.pop("fingerprint")  # the order differs
    for report in (left, right):
        del report["seconds"]
    assert left == right


def test_memory_limit_decides_what_is_held_in_memory(tmp_path: Path, cache: Path) -> None:
    row = {"prompt": "Say it", "completion": "a b " * 150_000}
    data = write_jsonl(tmp_path / "a.jsonl", [row])
    for limit, in_memory in (("1MB", False), ("100MB", True)):
        prepared = pipeline(data, cache, max_length=1 << 20, memory_limit=limit)
        assert prepared.store.is_in_memory == in_memory


@pytest.mark.parametrize("build", [byte_level_tokenizer, metaspace_tokenizer, slow_tokenizer])
def test_every_kind_of_tokenizer(data: Path, cache: Path, build: Any) -> None:
    for template in (None, CHATML):
        prepared = pipeline(data, cache, build(template))
        assert prepared.num_examples > 50
        assert prepared.report.notes == []
        assert prepared.report.unused_columns == "task"
        (question, *_) = prepared.questions(1)
        assert prepared.tokenizer.decode(question.prompt_ids).find(question.prompt[-4:]) > 0


def test_the_cache_is_found_and_depends_on_what_matters(data: Path, cache: Path) -> None:
    first = pipeline(data, cache)
    assert not first.report.from_cache
    assert pipeline(data, cache).report.from_cache
    harmless = {"packing": False, "prefetch_factor": 5, "num_workers": 1, "pin_memory": False}
    for name, value in harmless.items():
        assert pipeline(data, cache, **{name: value}).report.from_cache, name
    matters = {
        "max_length": 100,
        "over_length": "quarantine",
        "train_on": "all",
        "validation_split": 0.2,
        "task_column": "task",
        "chat_template": CHATML,
        "streaming": True,
        "shape": "prompt",
        "answer_column": "task",
    }
    matters["prompt_column"] = "question"
    del matters["shape"]
    for name, value in matters.items():
        found = pipeline(data, cache, **{name: value})
        assert not found.report.from_cache or name == "prompt_column", name
    assert not pipeline(data, cache, metaspace_tokenizer()).report.from_cache


def test_a_changed_file_is_read_again_whatever_its_time(data: Path, cache: Path) -> None:
    before = pipeline(data, cache)
    stamp = data.stat()
    before.prepare()
    data.write_text(data.read_text().replace("What is 5 ", "What is 8 "))
    os.utime(data, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    after = pipeline(data, cache)
    assert not after.report.from_cache
    assert after.fingerprint != before.fingerprint


def test_the_fingerprint_is_that_of_the_examples(data: Path, tmp_path: Path, cache: Path) -> None:
    moved = tmp_path / "elsewhere" / "other-name.jsonl"
    write_jsonl(moved, pairs(100))
    same_data = pipeline(moved, cache)
    assert same_data.fingerprint == pipeline(data, cache).fingerprint
    assert same_data.fingerprint == pipeline(data, cache, max_length=500).fingerprint
    different = [
        pipeline(data, cache, seed=0, train_on="all"),
        pipeline(data, cache, validation_split=0.3),
        pipeline(data, cache, metaspace_tokenizer()),
        pipeline(data, cache, streaming=True),
        pipeline(data, cache, streaming=True, buffer_size=3),
    ]
    assert len({same_data.fingerprint, *(p.fingerprint for p in different)}) == 6


def test_prompts_are_made_as_in_training(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache, byte_level_tokenizer(CHATML), task_column="task")
    questions, rows = prepared.questions(), prepared.evaluation_rows()
    batches = list(prepared.evaluation_batches(3))
    examples = [example for batch in batches for example in batch]
    for question, row, example in zip(questions, rows, examples, strict=True):
        start = int(np.flatnonzero(example.supervised)[0])
        assert question.prompt_ids == example.input_ids[:start].tolist()
        assert row.messages == [{"role": "user", "content": question.prompt}]
        assert row.answer == question.expected
        assert question.expected_length == example.supervised.sum() - 1
        assert question.task == row.task == example.task
    few = prepared.questions(3)
    assert [few[0], few[-1]] == [questions[0], questions[-1]]
    assert len(few) == 3


def test_questions_are_put_with_the_tools_and_options_of_their_rows(
    tmp_path: Path, cache: Path
) -> None:
    template = (
        "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        "{{ mood }}" + CHATML
    )
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]
    more = ({"tools": tools}, {"chat_template_kwargs": {"mood": "calm"}}, {})
    rows = [{**row, **more[n % 3]} for n, row in enumerate(pairs(30))]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    prepared = pipeline(data, cache, byte_level_tokenizer(template), validation_split=0.4)
    shown = []
    [examples] = prepared.evaluation_batches(30)
    for question, example in zip(prepared.questions(), examples, strict=True):
        start = int(np.flatnonzero(example.supervised)[0])
        assert question.prompt_ids == example.input_ids[:start].tolist()
        text = prepared.tokenizer.decode(question.prompt_ids)
        shown.append(("Adds." in text, text.startswith("calm")))
    assert {*shown} == {(True, False), (False, True), (False, False)}


def _number(text: str) -> int:
    return int(text.split()[2])


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("streaming", [False, True])
def test_augmentation_changes_what_is_seen(data: Path, cache: Path, streaming: bool) -> None:
    plain = pipeline(data, cache, streaming=streaming)
    changed = pipeline(data, cache, streaming=streaming, augmentation="shout")
    first, second = epoch(changed, 0), epoch(changed, 1)
    assert sorted(text.replace("!", "") for text in first) == sorted(epoch(plain))
    assert all("!" in text for text in first)
    assert sorted(first) != sorted(second)
    assert held_out(changed) == held_out(plain)
    assert changed.fingerprint != plain.fingerprint


def test_an_augmentation_that_cannot_be_used_leaves_the_row(data: Path, cache: Path) -> None:
    def blow_up(conversation: Conversation, rng: np.random.RandomState) -> Conversation:
        return Conversation((Turn("user", "word " * 999), conversation.turns[1]))

    register_augmentation("blow_up", blow_up)
    try:
        blown = pipeline(data, cache, augmentation="blow_up")
        assert epoch(blown) == epoch(pipeline(data, cache))
    finally:
        AUGMENTATIONS.unregister("blow_up")
    with pytest.raises(ValueError, match=r"data\.unknown_augmentation"):
        pipeline(data, cache, augmentation="blow_up").prepare()


def test_chat_templates_come_from_text_or_file(data: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "chat.jinja").write_text(CHATML)
    for setting in (CHATML, str(tmp_path / "chat.jinja")):
        prepared = pipeline(data, cache, chat_template=setting)
        assert prepared.tokenizer.chat_template == CHATML  # saved with the model
        assert epoch(prepared)[0].startswith("<|im_start|>user")
    assert prepared.report.end_tokens == {"<|im_end|>": 100}
    eos, end = (
        prepared.tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|im_end|>")
    )
    assert prepared.stop_token_ids == sorted([eos, end])
    with pytest.raises(ValueError, match=r"data\.invalid_chat_template.*value=chat"):
        pipeline(data, cache, chat_template="chat")


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (
        "{broken\n{broken\n",
        {},
        r"data\.no_readable_row\(file=a\.jsonl, reason=a\.jsonl:1: broken JSON",
    ),
    ('{"foo": "1"}\n', {}, r"\(file=a\.jsonl, .*data\.in_no_known_shape\(\), columns=foo,"),
    ('{"question": "Q", "answer": ""}\n', {}, r"data\.too_many_bad_rows\(num_bad=1, num_rows=1,"),
    (
        '{"question": "Q", "answer": ""}\n',
        {"max_bad_rows_percent": 100},
        r"data\.no_rows_left\(.*a\.jsonl",
    ),
    ('{"question": "Q", "answer": "A"}\n', {"path": None}, r"data\.no_training_data"),
    (
        '{"question": "Q", "answer": "A"}\n',
        {"format": "jason"},
        r"data\.unknown_format.*\(meant=json\)",
    ),
    (
        '{"question": "Q", "answer": "A"}\n',
        {"eval_path": "gone.jsonl"},
        r"data\.path_not_found\(what=held-out data",
    ),
    (
        '{"question": "Q", "answer": "A"}\n',
        {"augmentation": "none such"},
        r"data\.unknown_augmentation.*name=none such",
    ),
]


@pytest.mark.parametrize(("content", "settings", "sentence"), REFUSED)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, cache: Path, content: str, settings: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    prepared = pipeline(tmp_path / "a.jsonl", cache)
    prepared.config = prepared.config.copy_with(**settings)
    with pytest.raises(ValueError, match=sentence):
        prepared.prepare()


def test_a_folder_of_mixed_shapes_is_refused_with_the_files(tmp_path: Path, cache: Path) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", pairs(10))
    write_jsonl(
        tmp_path / "data" / "b.jsonl", [{"instruction": "a", "output": str(n)} for n in range(10)]
    )
    sentence = "data.unrecognized_file"
    with pytest.raises(ValueError, match=sentence):
        pipeline(tmp_path / "data", cache).prepare()


def test_batches_end_their_threads(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache)
    batches = prepared.train_batches(0, 0, 2)
    next(batches)
    batches.close()
    list(prepared.evaluation_batches(2))
    assert not [t for t in threading.enumerate() if "prefetch" in t.name]


def test_an_entry_in_use_is_kept_until_closed(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache)
    prepared.prepare()
    full = TokenCache(CacheConfig(directory=str(cache), disk_size=0))
    full.sweep()
    assert len(epoch(prepared)) == prepared.num_examples
    prepared.close()
    full.sweep()
    assert [p for p in (cache / "tokens").iterdir() if not p.name.startswith(".")] == []


@pytest.mark.parametrize("part", ["train", "evaluation"])
def test_an_entry_is_kept_while_its_batches_are_read(data: Path, cache: Path, part: str) -> None:
    expected = epoch(pipeline(data, cache)) if part == "train" else held_out(pipeline(data, cache))
    gc.collect()  # lets the entry go
    prepared = pipeline(data, cache, memory_size=0)
    batches = prepared.train_batches(0, 0, 2) if part == "train" else prepared.evaluation_batches(2)
    found = [next(batches)]
    tokenizer, folder = prepared.tokenizer, prepared.store.folder
    del prepared
    gc.collect()
    full = TokenCache(CacheConfig(directory=str(cache), disk_size=0))
    full.sweep()
    assert folder.is_dir()
    found += batches
    assert [tokenizer.decode(e.input_ids) for batch in found for e in batch] == expected
    del batches
    gc.collect()
    full.sweep()
    assert not folder.exists()


def test_training_texts_leave_out_what_is_held_out(data: Path, cache: Path) -> None:
    found = set(training_texts(DataConfig(path=str(data))))
    prepared = pipeline(data, cache)
    prompts = {row.messages[0]["content"] for row in prepared.evaluation_rows()}
    assert len(prompts) >= 1
    assert not prompts & found
    assert len(found) == 2 * prepared.num_examples


SOURCES: list[dict[str, Any]] = [{}, {"streaming": True, "buffer_size": 9}]


@pytest.mark.parametrize("settings", SOURCES)
@pytest.mark.parametrize("augmented", [False, True])
def test_every_example_is_named_by_its_file_and_line(
    tmp_path: Path, cache: Path, settings: dict[str, Any], augmented: bool
) -> None:
    """Two files, a bad row and held-out rows between, at any place of any epoch."""
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = pairs(40)
    rows[3] = {"question": "no answer", "answer": "", "task": "odd"}
    write_jsonl(folder / "a.jsonl", rows[:25])
    write_jsonl(folder / "b.jsonl", rows[25:])
    lines = {row["question"]: f"a.jsonl:{n + 1}" for n, row in enumerate(rows[:25])}
    lines |= {row["question"]: f"b.jsonl:{n + 1}" for n, row in enumerate(rows[25:])}
    if augmented:
        settings = {**settings, "augmentation": "same"}
    prepared = pipeline(folder, cache, max_bad_rows_percent=50, **settings)
    register_augmentation("same", lambda conversation, generator: conversation)
    try:
        for number, start, count in ((0, 0, 40), (1, 7, 5), (2, 20, 12)):
            shown = epoch(prepared, number, start)[:count]
            expected = [next(lines[q] for q in lines if q in text) for text in shown]
            assert prepared.places(number, start, count) == expected
    finally:
        AUGMENTATIONS.unregister("same")


@pytest.mark.parametrize("mode", ["stored", "streaming"])
def test_the_first_examples_are_trained_on_and_differ(
    tmp_path: Path, cache: Path, mode: str
) -> None:
    rows = pairs(40)
    data = write_jsonl(tmp_path / "rows.jsonl", [rows[0], *rows])  # the first one twice
    prepared = pipeline(data, cache, **MODES[mode])
    shown = [tuple(one.example.input_ids) for one in first_examples(prepared, 3)]
    assert len({*shown}) == 3
    trained = [tuple(e.input_ids) for batch in prepared.train_batches(0, 0, 8) for e in batch]
    assert {*shown} <= {*trained}
    if mode == "stored":
        in_the_files = [tuple(e.input_ids) for e in prepared.examples(range(6))]
        assert shown == [*dict.fromkeys(in_the_files)][:3]
        lines = [int(place.rpartition(":")[2]) for place in prepared.places_of(range(6))]
        assert lines == sorted(lines)


TALKS: list[tuple[str, ...]] = [
    ("Q", "A"),
    ("", "Hi", "R", "B"),
    ("Q", "A", "R", "B"),
    ("Q", "A", "unanswered"),
    ("Q", "A", "R", " "),
]


def talked(texts: tuple[str, ...], number: int) -> dict[str, Any]:
    roles = ("user", "assistant") * 2
    turns = [
        {"role": r, "content": t and f"{t}{number}"} for r, t in zip(roles, texts, strict=False)
    ]
    return {"messages": [turn for turn in turns if turn["content"]], "task": f"t{number}"}


def test_held_out_rows_become_questions_by_their_last_answer(tmp_path: Path, cache: Path) -> None:
    """Those with a prompt and an answer in words; all are measured."""
    talks = [talked(texts, number) for number, texts in enumerate(TALKS)]
    call = {"role": "assistant", "content": "A", "tool_calls": [{"name": "f", "arguments": {}}]}
    talks.append({"messages": [{"role": "user", "content": "Q"}, call], "task": "t5"})
    talks[4]["messages"][3]["content"] = " "
    whole = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m.tool_calls }}")
    held = write_jsonl(tmp_path / "held.jsonl", talks)
    data = write_jsonl(tmp_path / "a.jsonl", talks[:1])
    prepared = pipeline(
        data, cache, byte_level_tokenizer(whole), eval_path=str(held), task_column="task"
    )
    assert prepared.evaluation_tasks() == [f"t{n}" for n in range(6)]
    assert prepared.evaluation_places() == [f"held.jsonl:{line}" for line in range(1, 7)]
    rows = prepared.evaluation_rows()
    answers = [("t0", "A0"), ("t1", "B1"), ("t2", "B2"), ("t3", "A3")]
    assert [(row.task, row.answer) for row in rows] == answers
    assert [len(row.messages) for row in rows] == [1, 2, 3, 1]
    questions = prepared.questions()
    assert [(one.task, one.expected) for one in questions] == answers
    assert [one.place for one in questions] == [f"held.jsonl:{line}" for line in range(1, 5)]
    assert questions[2].prompt == "user: Q2\nassistant: A2\nuser: R2"
    for most, chosen in ((9, range(4)), (4, range(4)), (3, [0, 1, 3]), (2, [0, 3]), (1, [0])):
        assert prepared.questions(most) == [questions[n] for n in chosen]
        assert prepared.evaluation_rows(most) == [rows[n] for n in chosen]
        assert prepared.rows_with_questions(most) == [(rows[n], questions[n]) for n in chosen]


def test_a_prompt_that_leaves_no_room_is_no_question(tmp_path: Path, cache: Path) -> None:
    data = write_jsonl(tmp_path / "a.jsonl", pairs(3))
    tokenizer = byte_level_tokenizer()
    length = len(tokenizer(f"{pairs(1)[0]['question']}\n")["input_ids"])
    held = write_jsonl(tmp_path / "b.jsonl", pairs(1))
    for over_length in ("keep_start", "truncate"):
        for max_length in (length + 1, length + 9):
            prepared = pipeline(
                data, cache, eval_path=str(held), over_length=over_length, max_length=max_length
            )
            assert len(prepared.questions()) == len(prepared.rows_with_questions(5)) == 1
            encoder = prepared._ready().encoder
            encoder.max_length = length
            assert len(prepared.questions()) == (over_length == "truncate")


def test_lengths_are_those_of_the_examples_and_of_the_first_epoch(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache)
    ids = range(prepared.num_candidates)
    lengths = [len(example.input_ids) for example in prepared.examples(ids)]
    assert prepared.candidate_lengths().tolist() == lengths
    first, *others = [
        [len(e.input_ids) for batch in prepared.train_batches(n, 0, 8) for e in batch]
        for n in range(3)
    ]
    assert prepared.lengths().tolist() == first not in others
    chosen = np.array([1, 4, 9])
    for number in range(2):
        filled = prepared.lengths_of_selection(chosen, number)
        assert len(filled) == prepared.num_examples
        prepared.select(chosen)
        batches = prepared.train_batches(number, 0, 8)
        assert [len(e.input_ids) for batch in batches for e in batch] == filled.tolist()
        prepared.unselect()
    prepared.limit_to(3)
    assert sorted(prepared.lengths_of_selection(chosen, 1)) == sorted(lengths[n] for n in chosen)
    assert pipeline(data, cache, streaming=True).lengths() is None
    register_augmentation("same", lambda conversation, generator: conversation)
    try:
        assert pipeline(data, cache, augmentation="same").lengths() is None
    finally:
        AUGMENTATIONS.unregister("same")


def test_what_is_held_out_has_an_identity_of_its_own(tmp_path: Path, cache: Path) -> None:
    def identity(train: int, held: list[int], **settings: Any) -> str | None:
        data = write_jsonl(tmp_path / "a.jsonl", pairs(train, 50))
        rows = [pairs(1, number)[0] for number in held]
        other = write_jsonl(tmp_path / "b.jsonl", rows)
        given = {"eval_path": str(other)} if held else {"validation_split": 0}
        prepared = pipeline(data, cache, **given, **settings)
        assert prepared.held_out_identity == prepared.held_out_identity
        return prepared.held_out_identity

    assert identity(3, []) is None
    first = identity(3, [1, 2])
    assert first == identity(9, [1, 2]) == identity(3, [1, 2], streaming=True)
    assert len({first, identity(3, [2, 1]), identity(3, [1, 3]), identity(3, [1])}) == 4


def test_a_pipeline_that_prepared_nothing_holds_nothing(data: Path, cache: Path) -> None:
    unused = pipeline(data, cache)
    unused.close()
    assert unused.release_memory() == 0
    assert not cache.exists()
    prepared = pipeline(data, cache)
    assert prepared.prepare() is prepared.prepare() is prepared.report
    assert prepared.release_memory(60.0) == 0
    before = epoch(prepared)
    assert prepared.release_memory() > 0
    assert epoch(prepared) == before
    (prepared.store.folder / "train_contents.npy").unlink()
    assert prepared.contents(held_out=False) is None  # an old entry
    assert prepared.contents(held_out=True) is not None


def test_examples_for_display_are_looked_for_among_the_first(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*pairs(1)] * 4 + pairs(3, 1)
    data = write_jsonl(tmp_path / "a.jsonl", rows)
    prepared = pipeline(data, cache, validation_split=0)
    for looked_through, count, num_shown in ((100, 9, 4), (100, 2, 2), (5, 9, 2), (4, 9, 1)):
        monkeypatch.setattr(module, "LOOKED_THROUGH", looked_through)
        assert len(first_examples(prepared, count)) == num_shown


def test_rows_of_the_same_content_have_the_same_number(tmp_path: Path, cache: Path) -> None:
    first, second, third, fourth = pairs(4)
    data = write_jsonl(tmp_path / "a.jsonl", [first, second, first, third])
    held = write_jsonl(tmp_path / "b.jsonl", [fourth, first])
    prepared = pipeline(data, cache, eval_path=str(held))
    train, others = prepared.contents(held_out=False), prepared.contents(held_out=True)
    assert train is not None
    assert others is not None
    assert (train.dtype, len(train), len(others)) == (np.uint64, 4, 2)
    assert train[0] == train[2] == others[1]
    assert len({*train.tolist(), *others.tolist()}) == 4
    assert prepared.places_of([0, 3]) == ["a.jsonl:1", "a.jsonl:4"]


def test_a_row_that_is_refused_later_is_named(data: Path, cache: Path) -> None:
    """Augmented text falls back on the row, which has to be usable."""
    prepared = pipeline(data, cache, streaming=True)
    source = prepared._ready().source
    source.tokenizer.encoder.max_length = 3  # type: ignore[union-attr]
    source.tokenizer.encoder.over_length = "quarantine"  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"data\.row_no_longer_usable\(row=train\.jsonl:\d+: over"):
        epoch(prepared)
