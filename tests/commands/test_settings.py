"""The configuration of a command, and the `temper train` that has the same settings."""

from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import parse
from infrastructure.commands.settings import configure, resolve_model, training_words


@pytest.mark.parametrize(
    ("words", "without", "expected"),
    [
        ("", (), ""),
        ("a.jsonl --lora --epochs 3", (), "a.jsonl --lora --epochs 3"),
        ("--epochs 3 --no-pin-memory", {"training.num_epochs"}, "--no-pin-memory"),
        ("a.jsonl --config c.yaml --bs 4", (), "a.jsonl --bs 4 --config c.yaml"),
    ],
)
def test_a_training_has_the_data_the_flags_and_the_file(
    words: str, without: set[str], expected: str
) -> None:
    options = parse(create_parser(), ["train", *words.split()])
    assert training_words(options, without) == ["temper", "train", *expected.split()]


def test_an_argument_that_was_given_counts_more_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("data: {path: of-file.jsonl}\ntraining: {num_epochs: 5}\n")
    options = parse(create_parser(), ["train", "--config", "c.yaml", "--epochs", "7"])
    for given, path in ((None, "of-file.jsonl"), ("of-argument.jsonl", "of-argument.jsonl")):
        config = configure(options, {"data.path": given})
        assert (config.data.path, config.training.num_epochs) == (path, 7)


def test_a_model_is_found_by_the_name_of_its_run(tmp_path: Path) -> None:
    run = tmp_path / "20260101-120000-mine-00ff"
    (run / "final").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert resolve_model(f"{tmp_path}/final", tmp_path) == str(run / "final")
    assert resolve_model("mine-00ff", tmp_path) == str(run)
    assert resolve_model("org/model", tmp_path) == "org/model"
