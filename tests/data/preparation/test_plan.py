"""A plan is what the configuration asks for, and its key names all that decides its result."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.encoding.chat_format import shipped_templates
from infrastructure.data.preparation import plan as module
from infrastructure.data.preparation.plan import (
    chat_template_of,
    find_shape,
    look_at_pictures,
    look_at_rows,
    num_processes,
    pictures_in,
    plan_key,
    plan_preparation,
    read_chat_template,
    template_notes,
    total_bytes_of,
    training_texts,
)
from infrastructure.data.preparation.preparation import EVALUATION, TRAIN, PreparationPlan
from infrastructure.data.readers.sources import discover
from tests.data.builders import (
    CHATML,
    MARKED,
    byte_level_tokenizer,
    pairs,
    pipeline,
    slow_tokenizer,
    write_jsonl,
)
from tests.training.seeing_models import encoded, picture


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    """Files to train on and one that is held out, whose columns have other names."""
    for number in range(2):
        write_jsonl(tmp_path / "train" / f"{number}.jsonl", pairs(20, start=20 * number))
    other = [{"instruction": row["question"], "output": row["answer"]} for row in pairs(5, 90)]
    held_out = write_jsonl(tmp_path / "held_out.jsonl", other)
    return DataConfig(path=str(tmp_path / "train"), eval_path=str(held_out), num_workers=0)


def planned(config: DataConfig, **settings: Any) -> PreparationPlan:
    return plan_preparation(config.copy_with(**settings), byte_level_tokenizer(CHATML))


def with_first(side: int, **facts: Any) -> Callable[[PreparationPlan], PreparationPlan]:
    """A plan whose first file of a side is another."""

    def changed(plan: PreparationPlan) -> PreparationPlan:
        train, held_out = (list(files) for files in plan.files)
        (train, held_out)[side][0] = replace(plan.files[side][0], **facts)
        return replace(plan, files=(train, held_out))

    return changed


def with_shape(side: int, **facts: Any) -> Callable[[PreparationPlan], PreparationPlan]:
    def changed(plan: PreparationPlan) -> PreparationPlan:
        train, held_out = plan.shapes
        shape = replace(plan.shapes[side], **facts)
        return replace(plan, shapes=(shape, held_out) if side == TRAIN else (train, shape))

    return changed


def with_encoder(**facts: Any) -> Callable[[PreparationPlan], PreparationPlan]:
    def changed(plan: PreparationPlan) -> PreparationPlan:
        for name, value in facts.items():
            setattr(plan.encoder, name, value)
        return plan

    return changed


SEEING = SimpleNamespace(settings=lambda: ["a processor"])
WIDER = SimpleNamespace(settings=lambda: ["another processor"])
CHANGES: dict[str, Callable[[PreparationPlan], PreparationPlan]] = {
    "a file's name": with_first(TRAIN, name="another.jsonl"),
    "a file's format": with_first(TRAIN, format="json"),
    "a file's note": with_first(TRAIN, note="half of it is read"),
    "a file's encoding": with_first(TRAIN, encoding="cp1252"),
    "a file's split": with_first(TRAIN, split="train"),
    "the held-out file": with_first(EVALUATION, name="another.jsonl"),
    "the order of files": lambda plan: replace(plan, files=(plan.files[0][::-1], plan.files[1])),
    "no held-out file": lambda plan: replace(plan, files=(plan.files[TRAIN], [])),
    "the columns": with_shape(TRAIN, columns={"prompt": "answer", "answer": "question"}),
    "the held-out columns": with_shape(EVALUATION, columns={"prompt": "a", "answer": "b"}),
    "the task": with_shape(TRAIN, task_column="task"),
    "the tokenizer": with_encoder(tokenizer=byte_level_tokenizer(CHATML, eos_token="</s>")),
    "the training template": with_encoder(template=SimpleNamespace(template=MARKED)),
    "the tool template": with_encoder(tool_template=SimpleNamespace(template=MARKED)),
    "the length": with_encoder(max_length=77),
    "what is over-long": with_encoder(over_length="truncate"),
    "what is learned": with_encoder(train_on="all"),
    "pictures": with_encoder(pictures=SEEING),
    "other pictures": with_encoder(pictures=WIDER),
    "the split": lambda plan: replace(plan, validation_split=0.25),
    "windows": lambda plan: replace(plan, window_limits=(10, None)),
    "more rows in windows": lambda plan: replace(plan, window_limits=(11, None)),
    "more bytes in windows": lambda plan: replace(plan, window_limits=(10, 5000)),
    "texts": lambda plan: replace(plan, keep_conversations=True),
}


def test_a_key_changes_with_all_that_decides_the_result(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"nothing": plan_key(planned(config))}
    keys |= {what: plan_key(change(planned(config))) for what, change in CHANGES.items()}
    versions = ("FORMAT", "LABELS", "ROWS", "ACCOUNTING", "SURVIVAL")
    for name in (f"{version}_VERSION" for version in versions):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, -1)
            keys[name] = plan_key(planned(config))
    assert len({*keys.values()}) == len(keys), sorted(keys, key=keys.__getitem__)


def test_a_key_stays_with_what_decides_nothing(config: DataConfig, tmp_path: Path) -> None:
    key = plan_key(planned(config))
    harmless = replace(planned(config), num_processes=7, worker_bytes=10**9, notes=("a note",))
    assert plan_key(harmless) == key
    shutil.copytree(tmp_path / "train", tmp_path / "elsewhere" / "train")
    moved = {"path": str(tmp_path / "elsewhere" / "train")}
    assert plan_key(planned(config, **moved)) == key


def test_where_files_lie_counts_where_paths_of_pictures_do(
    config: DataConfig, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "train", tmp_path / "elsewhere" / "train")
    moved = {"path": str(tmp_path / "elsewhere" / "train")}
    see = with_encoder(pictures=SEEING)
    assert plan_key(see(planned(config, **moved))) != plan_key(see(planned(config)))
    shutil.copy(str(config.eval_path), tmp_path / "elsewhere" / "held_out.jsonl")
    other = {"eval_path": str(tmp_path / "elsewhere" / "held_out.jsonl")}
    assert plan_key(planned(config, **other)) == plan_key(planned(config))
    assert plan_key(see(planned(config, **other))) != plan_key(see(planned(config)))


def test_a_plan_follows_the_settings(config: DataConfig) -> None:
    plan = planned(config, validation_split=0.0, max_length=99)
    assert [[file.name for file in files] for files in plan.files] == [
        ["0.jsonl", "1.jsonl"],
        ["held_out.jsonl"],
    ]
    assert [shape.columns["prompt"] for shape in plan.shapes] == ["question", "instruction"]
    encoder = plan.encoder
    assert (encoder.max_length, encoder.over_length, encoder.train_on) == (
        99,
        config.over_length,
        config.train_on,
    )
    assert (plan.validation_split, plan.window_limits, plan.keep_conversations) == (0, None, False)
    alone = planned(config, eval_path=None, validation_split=0.25)
    assert (alone.files[EVALUATION], alone.validation_split) == ([], 0.25)
    assert alone.shapes[EVALUATION] == alone.shapes[TRAIN]
    stream = planned(config, streaming=True, buffer_size=7, memory_limit="3MB")
    assert stream.window_limits == (7, 3_000_000)
    for over_length, train_on in (("truncate", "all"), ("quarantine", "last_answer")):
        encoder = planned(config, over_length=over_length, train_on=train_on).encoder
        assert (encoder.over_length, encoder.train_on) == (over_length, train_on)


@pytest.mark.parametrize(
    ("megabytes", "cores", "setting", "processes"),
    [
        *((199, 64, "auto", 0), (200, 64, "auto", 8), (200, 3, "auto", 2), (300, 2, "auto", 0)),
        *((1, 2, 5, 5), (300, 64, 0, 0)),
    ],
)
def test_processes_are_started_where_they_pay(
    monkeypatch: pytest.MonkeyPatch, megabytes: int, cores: int, setting: Any, processes: int
) -> None:
    monkeypatch.setattr(module, "processor", lambda: SimpleNamespace(num_cores=cores))
    halves: Any = [SimpleNamespace(stamp=lambda: (megabytes * 500_000, 0))] * 2
    config = DataConfig(num_workers=setting)
    assert num_processes(config, halves, byte_level_tokenizer()) == processes


def test_texts_to_train_a_tokenizer_on_are_those_that_are_trained_on(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for row in pairs(40) for text in (row["question"], row["answer"])]
    assert list(training_texts(config)) == texts  # all, where others are held out
    rows: list[Any] = [*pairs(30), "{broken", {"question": "?"}, *pairs(30, 30)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    settings: dict[str, Any] = {"validation_split": 0.2, "max_bad_rows_percent": 50}
    prepared = pipeline(data, tmp_path / "cache", **settings)
    places = prepared.places_of(range(prepared.num_examples))
    kept = [rows[int(place.rpartition(":")[2]) - 1] for place in places]
    assert len(kept) in range(30, 60)
    expected = [text for row in kept for text in (row["question"], row["answer"])]
    assert list(training_texts(DataConfig(path=str(data), **settings))) == expected
    turns = [{"role": r, "content": f"by {r}"} for r in ("user", "assistant", "user")]
    chats = write_jsonl(tmp_path / "chats.jsonl", [{"messages": turns}])
    unsplit = DataConfig(path=str(chats), validation_split=0)
    assert list(training_texts(unsplit)) == ["by user", "by assistant"]  # to the last answer
    monkeypatch.setattr(module, "MAX_TOKENIZER_ROWS", 30)
    assert list(training_texts(config)) == texts[:60]


def test_bad_rows_of_any_file_are_refused_before_anything_is_loaded(
    config: DataConfig, tmp_path: Path
) -> None:
    files = discover(str(tmp_path / "train"))
    assert look_at_rows(files, config).columns == {"prompt": "question", "answer": "answer"}
    bad: list[Any] = ["{broken", {"question": "?"}]  # the second one can be read
    write_jsonl(tmp_path / "train" / "2.jsonl", bad * 5)
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows.*num_bad=10.*num_rows=50"):
        look_at_rows(discover(str(tmp_path / "train")), config)


def test_settings_that_the_plan_does_not_read_reach_it_too(
    config: DataConfig, tmp_path: Path
) -> None:
    shared = config.copy_with(validation_split=0.3, num_workers=3)
    plan = plan_preparation(shared, byte_level_tokenizer(), 7)
    assert plan.validation_split == 0.0  # others are held out
    assert (plan.num_processes, plan.worker_bytes, plan.notes) == (3, 7, ())
    text = write_jsonl(tmp_path / "text.jsonl", [{"text": "<|im_start|>user: Hi"}] * 2)
    advice, *others = planned(config, path=str(text)).notes
    assert advice.startswith("data.text_holds_formatted_chat(column=text,")
    assert others == []
    for streaming in (False, True):
        plan = planned(config, augmentation="any", streaming=streaming)
        assert plan.keep_conversations is not streaming


@pytest.mark.parametrize(
    ("setting", "column", "parts"),
    [
        ({"prompt_column": "c", "answer_column": "d"}, None, {"prompt": "c", "answer": "d"}),
        ({"context_column": "d"}, None, {"prompt": "question", "context": "d"}),
        ({"text_column": "d"}, None, {"text": "d"}),
        ({"shape": "alpaca"}, None, {"prompt": "instruction", "answer": "output"}),
        ({"shape": "qa", "task_column": "c"}, "c", {"prompt": "question"}),
        ({"shape": "qa", "image_column": "image"}, None, {"pictures": "image"}),
    ],
)
def test_columns_are_those_of_the_settings(
    tmp_path: Path, setting: dict[str, str], column: str | None, parts: dict[str, str]
) -> None:
    names = ("question", "answer", "c", "d", "image")
    names += ("instruction", "output") if setting.get("shape") == "alpaca" else ()
    data = write_jsonl(tmp_path / "a.jsonl", [dict.fromkeys(names, "x")])
    shape = find_shape(discover(str(data)), DataConfig(path=str(data), **setting))
    assert shape.task_column == column
    assert parts.items() <= shape.columns.items()


def test_rows_are_looked_at_one_by_one_where_the_files_are_small(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "train" / "2.jsonl", ["{broken"] * 10)
    files = discover(str(tmp_path / "train"))
    size = sum(file.path.stat().st_size for file in files)
    monkeypatch.setattr(module, "MOST_BYTES_AT_ONCE", size - 1)
    assert look_at_rows(files, config).name == "qa"
    monkeypatch.setattr(module, "MOST_BYTES_AT_ONCE", size)
    with pytest.raises(ValueError, match=r"data\.too_many_bad_rows"):
        look_at_rows(files, config)
    assert look_at_rows(files, config.copy_with(max_bad_rows_percent=20)).name == "qa"


@pytest.mark.parametrize(("megabytes", "processes"), [(2.4, 0), (2.5, 4), (99, 4)])
def test_slow_tokenizers_use_processes_sooner(
    monkeypatch: pytest.MonkeyPatch, megabytes: float, processes: int
) -> None:
    monkeypatch.setattr(module, "processor", lambda: SimpleNamespace(num_cores=5))
    halves: Any = [SimpleNamespace(stamp=lambda: (int(megabytes * 10**6), 0))] * 2
    assert num_processes(DataConfig(), halves, slow_tokenizer()) == processes


def test_a_share_of_the_memory_is_one_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory", lambda: SimpleNamespace(total_bytes=8_000))
    assert [total_bytes_of(amount) for amount in (None, "25%", "3KB")] == [None, 2_000, 3_000]
    monkeypatch.setattr(module, "memory", lambda: SimpleNamespace(total_bytes=2))
    assert total_bytes_of("1%") == 1  # a limit, however small


def test_data_without_a_readable_row_is_refused_with_the_first_fault(tmp_path: Path) -> None:
    config = DataConfig(path=str(tmp_path))
    (tmp_path / "a.csv").write_text("question,answer\n")
    write_jsonl(tmp_path / "b.jsonl", ["{broken", "[1]"])
    fault = r"reason=b\.jsonl:1: broken JSON .*: data\.write_with_json_dumps\(\)\)"
    with pytest.raises(ValueError, match=rf"data\.no_readable_row\(file=a\.csv, {fault}"):
        find_shape(discover(str(tmp_path)), config)
    write_jsonl(tmp_path / "b.jsonl", ["[1]"])  # for which there is no remedy
    with pytest.raises(ValueError, match=r"reason=b\.jsonl:1: wrong type \([^:]*\)\)$"):
        find_shape(discover(str(tmp_path)), config)
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(ValueError, match=r"reason=data\.file_without_rows\(\)\)"):
        find_shape(discover(str(tmp_path)), config)
    write_jsonl(tmp_path / "c.jsonl", [{"foo": "x", "bar": 1, "baz": 2}])
    for files, more in (
        (discover(str(tmp_path)), " and 1 more"),
        (discover(str(tmp_path))[1:], ""),
    ):
        refusal = rf"data\.unrecognized_file\(file=[ac]\.\w+, more={more}, reason=data\.unrec"
        with pytest.raises(ValueError, match=refusal):
            find_shape(files, config)


def shown(folder: Path, images: Sequence[object]) -> DataConfig:
    """Rows that ask about these pictures."""
    rows = [{"question": "?", "answer": "red", "image": image} for image in images]
    return DataConfig(path=str(write_jsonl(folder / "rows.jsonl", rows)))


@pytest.mark.parametrize(
    ("images", "refusal"),
    [
        (["gone.png"] * 9 + ["red.png"], None),
        (["gone.png"] * 10 + ["red.png"], r"rows=data\.first_bad_rows\(count=10\)"),
        (["gone.png"], r"rows=data\.only_row\(\), fault=rows\.jsonl:1: data\.image_not_found"),
        (["red.png", "gone.png"], None),
        (["red.png", 5], None),
        ([{"path": "gone.png"}, 5], r"rows=data\.first_bad_rows\(count=2\), fault=rows\.jsonl:1:"),
        ([None, None], None),
    ],
)
def test_one_of_the_first_pictures_has_to_be_usable(
    tmp_path: Path, images: list[object], refusal: str | None
) -> None:
    (tmp_path / "red.png").write_bytes(encoded(picture("red")))
    config = shown(tmp_path, images)
    files = discover(str(config.path))
    if refusal is None:
        look_at_pictures(files, config)
        return
    with pytest.raises(ValueError, match=rf"data\.images_unusable\(path=.*rows\.jsonl, {refusal}"):
        look_at_pictures(files, config)


def test_pictures_of_a_saved_data_set_lie_in_its_folder(tmp_path: Path) -> None:
    rows = [{"question": "?", "answer": "red", "image": "red.png"}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "rows"))
    config = DataConfig(path=str(tmp_path / "rows"))
    (tmp_path / "red.png").write_bytes(encoded(picture("red")))
    with pytest.raises(ValueError, match=r"data\.images_unusable"):
        look_at_pictures(discover(str(config.path)), config)
    (tmp_path / "red.png").rename(tmp_path / "rows" / "red.png")
    look_at_pictures(discover(str(config.path)), config)


def test_pictures_of_the_first_file_alone_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(encoded(picture("red")))
    config = shown(tmp_path, ["gone.png"])
    files = discover(str(config.path)) + discover(str(shown(tmp_path / "more", ["red.png"]).path))
    (tmp_path / "more" / "red.png").write_bytes(encoded(picture("red")))
    with pytest.raises(ValueError, match=r"rows=data\.only_row\(\), fault=rows\.jsonl:1: "):
        look_at_pictures(files, config)


def test_rows_with_pictures_are_refused_where_model_or_settings_see_none(tmp_path: Path) -> None:
    config, tokenizer = shown(tmp_path, ["a.png"]), byte_level_tokenizer()
    place = r"place=data\.place_column\(column=image\)\)"
    with pytest.raises(ValueError, match=rf"data\.images_need_vision_model\({place}"):
        plan_preparation(config, tokenizer)
    sees: Any = object()
    assert plan_preparation(config, tokenizer, pictures=sees).encoder.pictures is sees
    for setting, value in (("streaming", True), ("augmentation", "any")):
        refusal = rf"data\.setting_without_image_support\(key=data\.{setting}, {place}"
        with pytest.raises(ValueError, match=refusal):
            plan_preparation(config.copy_with(**{setting: value}), tokenizer, pictures=sees)


def test_where_rows_hold_pictures_is_described(tmp_path: Path) -> None:
    assert pictures_in(shown(tmp_path, ["a.png"])) == "data.place_column(column=image)"
    assert pictures_in(shown(tmp_path, ["no picture"])) == ""
    assert pictures_in(DataConfig()) == ""
    assert pictures_in(DataConfig(path=str(tmp_path / "gone.jsonl"))) == ""
    content = [{"type": "text", "text": "?"}, {"type": "image", "image": "a.png"}]
    turns = [{"role": "user", "content": c} for c in ("?", content)]
    chats = [{"messages": [one, {"role": "assistant", "content": "red"}]} for one in turns]
    data = write_jsonl(tmp_path / "chats.jsonl", chats)
    place = "data.images_in_messages(place=chats.jsonl:2)"
    assert pictures_in(DataConfig(path=str(data))) == place


def test_the_first_hundred_rows_decide(tmp_path: Path) -> None:
    for number, has_context in ((99, True), (100, False)):
        rows: list[dict[str, Any]] = pairs(120)
        rows[number]["context"] = "C"
        data = write_jsonl(tmp_path / f"{number}.jsonl", ["{broken", *rows])
        shape = find_shape(discover(str(data)), DataConfig(path=str(data)))
        assert ("context" in shape.columns) is has_context


@pytest.mark.parametrize(
    ("header", "first"),
    [
        (["x" * 41, "reply"], "x" * 39 + "…"),
        (["x" * 40, "reply"], None),
        (["ask", "It is so. "], "ask"),
        (["Is it so?", "reply"], "Is it so?"),
        (["ask", "So it is!"], "ask"),
    ],
)
def test_a_header_that_reads_like_a_row_is_suspected(
    tmp_path: Path, header: list[str], first: str | None
) -> None:
    (tmp_path / "a.csv").write_text(",".join(header) + "\nQ,A\n")
    with pytest.raises(ValueError, match=r"data\.unrecognized_file") as caught:
        find_shape(discover(str(tmp_path / "a.csv")), DataConfig())
    reason = f"reason=data.missing_header(first_field={first}))"
    assert str(caught.value).endswith(reason) is (first is not None)
    data = write_jsonl(tmp_path / "a.jsonl", [dict.fromkeys(header, "x")])  # has no header
    with pytest.raises(ValueError, match=r"data\.unrecognized_rows"):
        find_shape(discover(str(data)), DataConfig())


def test_the_template_is_the_configured_one_or_else_the_tokenizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = byte_level_tokenizer(CHATML)
    assert chat_template_of(DataConfig(), own) == CHATML
    assert chat_template_of(DataConfig(chat_template=MARKED), own) == MARKED
    with pytest.raises(ValueError, match=r"data\.dialogue_needs_template\(\)"):
        chat_template_of(DataConfig(), byte_level_tokenizer())
    (tmp_path / "mine.jinja").write_text("größer", "utf-8")
    assert read_chat_template(str(tmp_path / "mine.jinja")) == "größer"
    names = dict.fromkeys(("aa", "bb"), tmp_path / "mine.jinja")
    lack = "data.shipped_template_unavailable(lack=data.{}())"
    for shipped, installed, alternative in (
        (names, True, "data.shipped_template_names(names=aa, bb)"),
        ({}, True, lack.format("trl_without_named_templates")),
        ({}, None, lack.format("trl_not_installed")),
    ):
        monkeypatch.setattr(module, "shipped_templates", lambda shipped=shipped: shipped)
        monkeypatch.setattr(module, "find_spec", lambda name, found=installed: found)
        with pytest.raises(ValueError, match=r"data\.invalid_chat_template\(value=cc") as caught:
            read_chat_template("cc")
        assert str(caught.value).endswith(f"alternative={alternative})")


def test_a_template_that_is_missing_or_in_other_tags_is_noted(tmp_path: Path) -> None:
    given, none = DataConfig(chat_template=CHATML), byte_level_tokenizer()
    assert template_notes(given, None) == template_notes(given, byte_level_tokenizer(CHATML)) == []
    assert template_notes(DataConfig(), byte_level_tokenizer("<|other|>")) == []  # its own
    note = "data.model_without_chat_template(example=data.{})"
    [plain] = template_notes(DataConfig(), slow_tokenizer())
    assert plain == note.format("template_of_known_tokens()")
    if "qwen3" in shipped_templates():
        assert template_notes(DataConfig(), none) == [note.format("such_as_template(name=qwen3)")]
    other = byte_level_tokenizer(CHATML.replace("<|im_end|>", "<|end|>"))
    pieces = other("<|end|>", add_special_tokens=False)["input_ids"]
    num_more = 2 * (len(pieces) - 1)  # after the question and after the answer
    [spelled] = template_notes(given, other)
    assert spelled == f"data.template_tags_not_tokens(tags=<|end|>, num_more={num_more})"
