"""Words and flags that `temper` does not know get the one that was probably meant."""

import pytest

from infrastructure.commands.unknown_words import flag_hint, unknown_command

KNOWN = ["--lr", "--learning-rate", "--answer-column", "--lora", "--lora-r", "--eval-data"]


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--learnig-rate", "commands.did_you_mean(meant=--learning-rate)"),
        ("--answer-colum", "commands.did_you_mean(meant=--answer-column)"),
        ("--max-lr", "; config.called_here(settings=training.learning_rate)"),
        ("--steps", ""),  # the flag for it is none of this command
        ("--tensor-parallel", "; config.no_model_parallel()"),
        ("--qqxz", ""),
    ],
)
def test_a_flag_has_the_hint_of_a_known_one(flag: str, hint: str) -> None:
    assert flag_hint(flag, KNOWN) == hint


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("lst", "unknown_command_meant(word=lst, meant=temper backup list)"),
        ("history", "unknown_command_meant(word=history, meant=temper backup list)"),
        ("predict", "unknown_command(word=predict, known=list, export)"),
        ("merge", "unknown_command_meant(word=merge, meant=temper backup export)"),
        ("diff", "unknown_command_advice(word=diff, advice=commands.compare_models())"),
        ("ppo", "unknown_command_advice(word=ppo, advice=config.no_ppo())"),
        ("qqxz", "unknown_command(word=qqxz, known=list, export)"),
    ],
)
def test_a_word_has_the_command_that_was_meant(word: str, text: str) -> None:
    shown = unknown_command("temper backup", word, ["list", "export"])
    assert shown == f"commands.{text}"
