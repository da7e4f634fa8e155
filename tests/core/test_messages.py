"""A message is a code, what it is about, and the words of the catalogue."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer, Source, spelled_as_given
from infrastructure.config.sources.flags import as_flag
from infrastructure.config.sources.spelling import as_keyword, speaking
from infrastructure.core import messages
from infrastructure.core.errors import InputError
from infrastructure.core.messages import (
    WORDS,
    Message,
    Setting,
    as_key,
    phrase,
    spelled_by,
    words_of,
)

CATALOGUE = """
[plain]
text = "{path}: {count:# row} with {values}"
remedy = "Look at {{it}}"

[indices]
text = "{count:# index|indices} of {size:,}"

[named]
text = "set {=training.batch_size:{size}}, {=data.packing:false} or {=model.lora_config}"

[about]
text = "{setting} has no effect; {=interrupt} stops"
"""


@pytest.fixture(autouse=True)
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "trial.toml").write_text(CATALOGUE)
    monkeypatch.setattr(messages, "CATALOGUE", tmp_path)
    monkeypatch.delenv(WORDS)
    words_of.cache_clear(), messages._entries.cache_clear()
    yield
    words_of.cache_clear(), messages._entries.cache_clear()


def test_words_are_filled_with_what_a_message_is_about() -> None:
    assert phrase("trial.plain", path="a.jsonl", count=2000, values=["x", "y"]) == (
        "a.jsonl: 2,000 rows with x, y. Look at {it}"
    )
    assert phrase("trial.plain", path="{count}", count=1, values={"b", "a"}) == (
        "{count}: 1 row with a, b. Look at {it}"
    )
    assert phrase("trial.plain", path="a", count=1, values=["x?"]).endswith("x? Look at {it}")
    assert phrase("trial.indices", count=2, size=1000) == "2 indices of 1,000"
    assert phrase("trial.indices", count=1, size=1) == "1 index of 1"


@pytest.mark.parametrize(
    ("speller", "shown"),
    [
        (as_key, "set training.batch_size=4, data.packing=false or model.lora_config"),
        (as_flag, "set --batch-size 4, --no-packing or --lora"),
        (as_keyword, "set batch_size=4, packing=False or lora"),
    ],
)
def test_a_setting_is_spelled_as_the_reader_gives_it(speller: messages.Speller, shown: str) -> None:
    with spelled_by(speller):
        assert phrase("trial.named", size=4) == shown
        inner = Setting("training.batch_size", "4")
        expected = shown.partition(",")[0].removeprefix("set ")
        assert phrase("trial.about", setting=inner).startswith(f"{expected} has no effect")
    assert phrase("trial.about", setting="data.packing") == (
        "data.packing has no effect; Ctrl-C stops"
    ), "what is no Setting is shown as it is"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (Source(Layer.FLAG, "--bs"), "--bs 4"),
        (Source(Layer.ENVIRONMENT, "environment BATCH_SIZE"), "BATCH_SIZE=4"),
        (Source(Layer.FILE, "a.yaml:2: training.batch_size"), "training.batch_size=4"),
        (Source(Layer.DEFAULT, "default"), "--batch-size 4"),
    ],
)
def test_a_value_is_spelled_as_it_was_given(source: Source, shown: str) -> None:
    setting = Setting("training.batch_size", "4")
    with spelled_by(as_flag), spelled_as_given(lambda _: source):
        assert format(setting) == shown
    assert format(setting) == "training.batch_size=4"


def test_an_error_keeps_the_words_that_it_had_where_it_was_raised() -> None:
    with pytest.raises(InputError) as raised, speaking(as_keyword):
        raise InputError("trial.about", setting=Setting("data.packing", "true"))
    assert str(raised.value) == "packing=True has no effect; Ctrl-C stops"


def test_an_error_of_another_process_has_the_same_text() -> None:
    with spelled_by(as_flag):
        error = pickle.loads(pickle.dumps(InputError("trial.named", size=4)))
    assert isinstance(error, InputError)
    assert isinstance(error, ValueError)
    assert str(error) == "set --batch-size 4, --no-packing or --lora"


def test_where_an_error_is_shown_with_its_type_it_has_its_words() -> None:
    assert (
        repr(InputError("trial.named", size=4)) == f"InputError({phrase('trial.named', size=4)!r})"
    )


def test_a_text_that_is_no_code_is_shown_as_it_is() -> None:
    for text in ("runs/a.b is gone", "trial.gone", "a {b} c", "x.y\0", "." * 5000):
        assert str(Message(text)) == text
        assert str(InputError(text)) == text


def test_codes_are_shown_instead_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORDS, messages.CODES)
    with spelled_by(as_flag):
        shown = phrase("trial.about", setting=Setting("data.packing", "true"), path=Path("a"))
    assert shown == "trial.about(setting=data.packing=true, path=a)"


@pytest.mark.parametrize(
    ("value", "flag", "keyword"),
    [
        (("data.text_column", "my text"), "--text-column 'my text'", 'text_column="my text"'),
        (("training.compile_mode", "none"), "--compile-mode none", "compile_mode=None"),
        (("model.lora_config.r", "8"), "--lora-r 8", "lora_r=8"),
        (("data.path", "a.jsonl"), "--data-path a.jsonl", 'data="a.jsonl"'),
        (("accept", "data,seed"), "--accept data,seed", 'accept=["data", "seed"]'),
        (("max_tokens", "9"), "--max-tokens 9", "max_tokens=9"),
        (("new_run", ""), "--new-run", "new_run"),
        (("new_run", "true"), "--new-run", "new_run=True"),
        (("training", ""), "training", "training"),
    ],
)
def test_values_are_spelled_so_that_they_can_be_typed(
    value: tuple[str, str], flag: str, keyword: str
) -> None:
    assert as_flag(*value) == flag
    assert as_keyword(*value) == keyword


def test_the_inner_of_two_equal_spellers_ends_first() -> None:
    with spelled_by(as_flag), spelled_by(as_keyword):
        with spelled_by(as_flag):
            pass
        assert messages.speller() is as_keyword
    assert messages.speller() is as_key


def test_a_value_of_another_type_never_hides_a_message() -> None:
    assert phrase("trial.plain", path="a", count="many", values=()).startswith("a: many with")


def test_an_argument_that_no_configuration_has_is_spelled_by_the_door() -> None:
    config = DeploymentConfig(batch_size=4)
    with spelled_by(as_flag), spelled_as_given(config.source):
        assert format(Setting("accept", "seed")) == "--accept seed"
        assert format(Setting(messages.INTERRUPT)) == "Ctrl-C"
        assert format(Setting("training.batch_size", "8")) == "--batch-size 8"


def test_where_codes_are_shown_a_value_that_does_not_fit_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WORDS, messages.CODES)
    with pytest.raises(ValueError, match="Cannot specify ','"):
        phrase("trial.plain", path="a", count="many", values=())
    with pytest.raises(KeyError, match="path"):
        phrase("trial.plain", count=1, values=())
