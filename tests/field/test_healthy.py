"""Healthy data gives no false alarm: nothing refused, nothing set aside, nothing warned about."""

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.training.methods.method_data import MethodData, read_data
from tests.data.builders import CHATML, byte_level_tokenizer, write_jsonl
from tests.data.trl_masks import model_template, needs_templates, tokenizer_for
from tests.field.healthy import HEALTHY, NUM_ROWS, Healthy
from tests.training.seeing_models import llava_processor

LEAST = 50
# What a report says of every data set. All else in it is empty where nothing is wrong: a new field
# that warns is looked at here by itself, one that is a fact belongs into this list.
FACTS = {
    "files",
    "shape",
    "shape_reason",
    "rows_read",
    "num_train",
    "num_evaluation",
    "tokens",
    "supervised_tokens",
    "length_quantiles",
    "longest",
    "max_length",
    "task_counts",
    "end_tokens",
    "system_prompt",
    "has_context",
    "unused_columns",
    "fingerprint",
    "seconds",
    "train",
    "held_out",
    "num_read",
    "numbers",
    "unused",
}
# How tokenizers of today cut a text first: line ends stay together, whatever follows them.
AS_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ROWS = [{"question": f"{n}?", "answer": f"{n}"} for n in range(30)]
WITHOUT_ANSWER = [{"question": "31?"}]
OWN = [entry for entry in HEALTHY if entry.method == "sft"]
OF_TRL = [entry for entry in HEALTHY if entry.method != "sft"]


def alarms(report: DataReport | MethodData, entry: Healthy) -> dict[str, object]:
    """What a report says beside facts and what is right, by its field."""
    warnings = {name: value for name, value in vars(report).items() if name not in FACTS}
    warnings |= {"quarantine": dict(report.quarantine.counts)}
    warnings |= {"notes": report.notes if len(report.notes) > entry.num_notes else []}
    return {
        name: value
        for name, value in warnings.items()
        if _is_set(value) and name not in entry.false_alarms
    }


def _is_set(value: object) -> bool:
    return any(value.values()) if isinstance(value, dict) else bool(value)


def tokenizer_of(entry: Healthy) -> Any:
    """A real one, with the tokens that the entry's template writes."""
    if entry.is_metaspace:
        return tokenizer_for(CHATML, "metaspace")
    if entry.template in (None, CHATML):
        return byte_level_tokenizer(entry.template)
    tokenizer = tokenizer_for(model_template(str(entry.template)))
    whole_words = pre_tokenizers.Split(Regex(AS_LLAMA_3), "isolated")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [whole_words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def located(entry: Healthy, path: Path) -> dict[str, Any]:
    """The settings of an entry, with a file that they name beside the data."""
    beside = entry.settings.get("eval_path")
    held_out = {"eval_path": str(path.parent / beside)} if beside else {}
    settings = {"max_length": 1024, "num_workers": 0, **entry.settings, **held_out}
    return {"path": str(path), **settings}


def prepared(entry: Healthy, folder: Path) -> DataPipeline:
    data = folder / "data"
    data.mkdir()
    pictures = PictureTokens(llava_processor(), "llava") if entry.sees else None
    tokenizer = pictures.processor.tokenizer if pictures else tokenizer_of(entry)
    return DataPipeline(
        DataConfig(**located(entry, entry.write(data))),
        tokenizer,
        cache_config=CacheConfig(directory=str(folder / "cache")),
        pictures=pictures,
    )


def learned(data: DataPipeline) -> list[str]:
    """The learned text of each row without the tokens that end its answers."""
    batches = [*data.train_batches(0, 0, 8), *data.evaluation_batches(8)]
    ends = sorted({*data.report.end_tokens, *data.tokenizer.all_special_tokens}, reverse=True)
    texts = []
    for example in (example for batch in batches for example in batch):
        ids = example.input_ids[example.supervised]
        text = str(data.tokenizer.decode(ids))
        texts.append(re.sub(f"(?:{'|'.join(map(re.escape, ends))})\n?", "", text))
    return texts


def test_there_are_enough_of_them() -> None:
    names = [entry.name for entry in HEALTHY]
    assert len(names) == len(set(names)) >= LEAST


@needs_templates
@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_healthy_data_is_prepared_without_a_word(entry: Healthy, tmp_path: Path) -> None:
    data = prepared(entry, tmp_path)
    report = data.prepare()
    assert alarms(report, entry) == {}
    assert report.rows_read == report.num_train + report.num_evaluation
    if entry.answers:
        assert sorted(learned(data)) == sorted(entry.answers)


@needs_templates
@pytest.mark.parametrize("entry", OF_TRL, ids=lambda entry: entry.name)
def test_healthy_rows_reach_a_method_without_a_word(entry: Healthy, tmp_path: Path) -> None:
    config = DeploymentConfig(
        data=located(entry, entry.write(tmp_path)), training={"method": entry.method}
    )
    data = read_data(config, tokenizer_of(entry), tmp_path / "quarantine.jsonl")
    assert alarms(data, entry) == {}
    assert len(data.train) + len(data.held_out) == data.num_read == NUM_ROWS


def test_what_is_wrong_would_be_noticed(tmp_path: Path) -> None:
    wrong = Healthy(
        "rows twice, and one without an answer",
        lambda folder: write_jsonl(folder / "a.jsonl", ROWS * 2 + WITHOUT_ANSWER),
        settings={"max_bad_rows_percent": 100},
    )
    report = prepared(wrong, tmp_path).prepare()
    assert alarms(report, wrong).keys() == {"duplicates", "quarantine"}
