"""Wrong command lines: one sentence, with what was typed and what is meant."""

from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser, with_full_names
from infrastructure.commands.parser import parse
from infrastructure.config.sources.flags import flags_given


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "ask m --max-tokens x",
            "wrong_arguments(command=ask, separator=: , problem=argument --max-tokens:"
            " commands.value_must_be(kind=a whole number, value='x'), prog=temper ask)",
        ),
        (
            "watch --every x",
            "wrong_arguments(command=watch, separator=: , problem=argument --every:"
            " commands.value_must_be(kind=a number, value='x'), prog=temper watch)",
        ),
        (
            "backup prune --dry-run=yes",
            "wrong_arguments(command=backup prune, separator=: , problem=argument --dry-run:"
            " commands.takes_no_value(value='yes'), prog=temper backup prune)",
        ),
        ("train --detach true", "switch_takes_no_value(flag=--detach, value=true, ways=)"),
        (
            "train --lora No",
            "switch_takes_no_value(flag=--lora, value=No,"
            " ways=commands.switch_on_or_off(flag=--no-lora))",
        ),
        (
            "backup prune --dry-run false",
            "switch_takes_no_value(flag=--dry-run, value=false, ways=)",
        ),
        ("train a b", "second_data_argument(argument=b, data=a)"),
        (
            "export run folder more",
            "unknown_argument(arguments='more'commands.see_its_help(command=temper export))",
        ),
        (
            "backup list run --qqxz=1",
            "unknown_argument(arguments='--qqxz'commands.see_its_help(command=temper backup list))",
        ),
        (
            "train --qqxz 1 --bath_size 4 --qqxz",
            "unknown_arguments(arguments='--qqxz', '--bath-size' "
            "(mmands.did_you_mean(meant=--batch-size)), command=temper train)",
        ),
        (
            "export run --bits 5",
            "wrong_arguments(command=export, separator=: , problem=core.unknown_name("
            "what=value of --bits, name=5, hint=, known=16, 4, 8), prog=temper export)",
        ),
        (
            "backup 20260101",
            "action_missing_before_run(word=20260101, prog=temper backup, run=20260101,"
            " actions=create, list, verify, restore, prune, status)",
        ),
        (
            "checkpoints 2026010x",
            "unknown_command(word=2026010x, known=list, verify)",
        ),
    ],
)
def test_what_is_wrong_is_named(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as raised:
        parse(create_parser(), words.split())
    assert str(raised.value) == f"commands.{message}"


def test_a_file_may_be_called_as_a_value_of_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "true").touch()
    assert parse(create_parser(), ["train", "--detach", "true"]).data == "true"
    assert parse(create_parser(), ["train", "yes", "--lora"]).data == "yes"


@pytest.mark.parametrize(
    ("words", "full"),
    [
        ("", ""),
        ("help", "--help"),
        ("help chat more", "ask --help"),
        ("chat m help", "ask m help"),
        ("train-eval", "eval"),
        ("train chat", "train chat"),
    ],
)
def test_other_names_of_commands_are_replaced(words: str, full: str) -> None:
    assert with_full_names(words.split()) == full.split()


def test_words_behind_flags_are_taken_in_order() -> None:
    parsed = parse(create_parser(), ["export", "run", "--as", "lora", "folder", "--json"])
    assert (parsed.run, parsed.folder, parsed.part, parsed.json) == ("run", "folder", "lora", True)
    parsed = parse(create_parser(), ["ask", "m", "--max_tokens=3", "a", "--json", "b_c"])
    assert (parsed.max_tokens, parsed.questions) == (3, ["a", "b_c"])


def test_only_the_name_of_a_flag_is_written_with_dashes() -> None:
    words = ["train", "--output_dir=my_runs/a=b_c-d", "--run_name=--x_y", "my_rows.jsonl"]
    parsed = parse(create_parser(), words)
    given = {"--output-dir": "my_runs/a=b_c-d", "--run-name": "--x_y"}
    assert (flags_given(parsed), parsed.data) == (given, "my_rows.jsonl")
