"""`--help` is one screen of the flags that people use; `--help-all` has every flag."""

import argparse
import re
import shlex

import pytest

from infrastructure.commands import short_help
from infrastructure.commands.eval import FROM_RUN
from infrastructure.commands.main import COMMANDS, create_parser
from infrastructure.commands.parser import CommandParser, parse, subcommands
from infrastructure.commands.short_help import FAMILIAR, SETTINGS
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import ALIASES, flag_names, flags_given
from infrastructure.config.sources.load import load_config
from infrastructure.core.messages import WORDS
from infrastructure.evaluation.run_settings import INHERITED

FIELDS = schema_of(DeploymentConfig).fields
SCREEN_LINES = 60
LONG = ("train", "resume", "eval", "check", "tune", "config", "sweep")


def parser_of(command: str) -> CommandParser:
    return subcommands(create_parser())[command].complete()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_hidden_argument(command: str) -> None:
    parser = parser_of(command)
    hidden = [one for one in parser._actions if one.help == argparse.SUPPRESS]
    assert all(str(one.metavar or one.dest) not in parser.format_help() for one in hidden)
    assert argparse.SUPPRESS not in parser.format_help()


@pytest.mark.parametrize("command", LONG)
def test_help_is_one_screen(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(WORDS)  # whose length it is about
    with pytest.raises(SystemExit):
        parse(create_parser(), [command, "--help"])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= SCREEN_LINES
    assert max(map(len, shown.splitlines())) <= 100
    assert COMMANDS[command][1:] in shown
    useful = SETTINGS.difference(parser_of(command).unused)
    listed = {line.split()[0] for line in shown.splitlines() if line.startswith("  --")}
    assert {key for key in SETTINGS if flag_names(key)[0] in listed} == useful
    assert "{default}" not in shown
    default = "as in the run" if command == "resume" else "32"
    assert f"--batch-size N|auto        examples per forward pass (default: {default})" in shown


def test_the_help_shows_no_default_for_a_setting_that_is_taken_from_the_run() -> None:
    backup = subcommands(parser_of("backup"))["status"].complete()
    for parser in (parser_of("resume"), backup):
        helps = {flag: str(a.help) for a in parser._actions for flag in a.option_strings}
        assert helps["--backup-place"].endswith("(default: as in the run)")
        assert helps["--output"].endswith("(default: runs)")
    shown = " ".join(parser_of("resume").format_help().split())
    assert {*re.findall(r"\(default: ([^)]*)\)", shown)} == {"as in the run", "runs"}


def test_what_an_evaluation_takes_from_the_run_is_named_so() -> None:
    assert {*FROM_RUN} == {f"data.{name}" for name in INHERITED}
    helps = {flag: str(a.help) for a in parser_of("eval")._actions for flag in a.option_strings}
    for key in FROM_RUN:
        assert helps[flag_names(key)[0]].endswith("(default: as in the model's run)")


def test_the_help_of_a_measurement_names_its_own_defaults() -> None:
    shown = " ".join(parser_of("eval").format_help().split())
    assert "maximum tokens per example (default: as in the model's run)" in shown
    assert "examples per forward pass (default: 32)" in shown


EVALUATION = """\
usage: temper eval MODEL [DATA] [flags]

Evaluate a model on held-out data, or compare two models.

  MODEL                      commands.help_model()
  DATA                       commands.help_data()

model:
  --quantization 4bit|8bit   quantize the weights

data:
  --max-length N             maximum tokens per example (default: as in the
                             model's run)
  --train-on answers|last_answer|all
                             tokens that the loss is computed on (default: as in
                             the model's run)

evaluation:
  --batch-size N|auto        examples per forward pass (default: 32)
  --seed N                   random seed (default: 0)

output:
  --output FOLDER            folder that contains your runs (default: runs)

other flags:
  --help                     show this help message and exit
  --against OTHER            commands.help_against()
  --measures NAMES           commands.help_measures(of_tokens=loss, perplexity,
                             token_accuracy, of_answers=exact_match,
                             final_answer, f1, rouge1, rouge2, rougeL)
  --max-tokens N             commands.help_max_tokens_of_evaluation()
  --json                     commands.help_json()
  --config FILE              config.config_flag_help()
  --tasks NAMES              lm_eval.help_tasks()
  --tasks-path FOLDER        lm_eval.help_tasks_path()
  --limit N                  lm_eval.help_tasks_limit()
  --num-fewshot N            lm_eval.help_num_fewshot()
  --help-all                 commands.help_all_flags()

examples:
  temper eval runs/my-run questions.jsonl
"""
EXPORT = """\
usage: temper export RUN [FOLDER] [flags]

Export a checkpoint as a model that other programs can load.

  RUN                        commands.help_export_run()
  FOLDER                     commands.help_export_folder()

flags:
  --help                     show this help message and exit
  --as {auto,lora,merged}    commands.help_export_as()
  --bits {16,8,4}            commands.help_export_bits()
  --format {gguf,onnx,safetensors,torch-export}
                             commands.help_export_format()
"""
BACKUP = """\
usage: temper backup ACTION [flags]

Back up, list and restore runs.

  create                     back up the newest checkpoint now
  list                       list a run's checkpoints, here and at its backup
                             destination; with --place but no RUN, list the runs
                             there
"""
RESUME = """\
usage: temper resume [RUN] [flags]

Resume an interrupted run.

Each flag changes that setting of the run; all other settings keep their values.
A change that affects the result also needs --accept.

  RUN                        commands.help_run_or_checkpoint()
"""


@pytest.mark.parametrize(
    ("command", "shown"),
    [("eval", EVALUATION), ("export", EXPORT), ("backup", BACKUP), ("resume", RESUME)],
)
def test_the_help_has_words_flags_and_examples_in_columns(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = parser_of(command).format_help()
    assert text.startswith(shown)
    assert command != "eval" or text == shown
    widths = []
    for columns in ("9", "60", "999"):
        monkeypatch.setenv("COLUMNS", columns)
        widths.append(short_help._width())
    assert widths == [40, 60, 100]


def test_the_help_of_an_action_begins_as_a_sentence() -> None:
    shown = parser_of("queue").format_help()
    assert "queue.help_add" in shown
    add = subcommands(parser_of("queue"))["add"].complete()
    assert "\nQueue.help_add().\n" in add.format_help()


def test_the_values_of_a_word_are_named_in_the_help() -> None:
    parser = parser_of("sweep")
    shown = " ".join(parser.format_help().split())
    assert re.search(r"--sampler NAME \S*help_sampler\(.*samplers=tpe, random, grid", shown)


def test_what_a_model_answers_with_has_no_flags_of_a_training() -> None:
    shown = parser_of("bench").format_help()
    assert "--attention" in shown
    assert "--device" in shown
    assert "--lora" not in shown


def test_what_only_measures_speaks_of_no_training() -> None:
    assert "QLoRA" in parser_of("train").format_help()
    shown = parser_of("eval").format_help()
    assert "4bit|8bit" in shown
    assert "QLoRA" not in shown


def test_what_a_text_gives_as_a_value_is_one() -> None:
    _, text = FAMILIAR["training"]["training.deadline"]
    for value in text.rpartition("such as ")[2].split(" or "):
        load_config(None, flags={"--deadline": value})


def test_all_flags_are_in_the_long_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(create_parser(), ["train", "--help-all"])
    shown = capsys.readouterr().out
    missing = [key for key in FIELDS if flag_names(key)[0] not in shown]
    assert missing == []
    assert all(flag in shown for flags in ALIASES.values() for flag in flags)


def test_a_command_of_few_flags_shows_them() -> None:
    parser = parser_of("watch")
    assert "--every SECONDS" in parser.format_help()
    assert "--help-all" not in parser.format_help()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_example_parses(command: str) -> None:
    parser = parser_of(command)
    for one in (parser, *subcommands(parser).values()):
        for example in one.complete().examples:
            words = shlex.split(example.split("  ")[0])
            assert " ".join(words).startswith(one.prog)
            load_config(None, flags=flags_given(parse(create_parser(), words[1:])))


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--lr", "3e-4"], "training.learning_rate", 3e-4),
        (["--bs", "4"], "training.batch_size", 4),
        (["--seq-length", "64"], "data.max_length", 64),
        (["--max_seq_length=64"], "data.max_length", 64),
        (["--learning_rate", "1e-3"], "training.learning_rate", 1e-3),
        (["--optimizer", "adamW"], "training.optimizer", "adamw"),
        (["--optim", "adamw_torch"], "training.optimizer", "adamw"),
        (["--dtype", "bfloat16"], "model.dtype", "bf16"),
        (["--scheduler-type", "Cosine"], "training.scheduler_type", "cosine"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_fingers_know_is_understood(words: list[str], key: str, value: object) -> None:
    config = load_config(None, flags=flags_given(parse(create_parser(), ["train", *words])))
    assert config.value(key) == value


def test_an_alias_is_a_flag_of_no_other_setting() -> None:
    flags = [flag for key in FIELDS for flag in flag_names(key)]
    aliases = [flag for some in ALIASES.values() for flag in some]
    assert len({*flags, *aliases}) == len(flags) + len(aliases)
    assert {*ALIASES} <= {*FIELDS}
