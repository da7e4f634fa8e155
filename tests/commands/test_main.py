"""The `temper` command: fast help, exit codes, what must be set before torch is imported."""

import gc
import importlib.metadata
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.commands import main as main_module
from infrastructure.commands import resume as resume_command
from infrastructure.commands import train
from infrastructure.commands.main import (
    COMMANDS,
    GROUPS,
    HIDDEN,
    SAME_COMMANDS,
    _how_to_go_on,
    command,
    create_parser,
    main,
)
from infrastructure.commands.parser import known_flags, parse
from infrastructure.core import importing
from infrastructure.core.errors import (
    InputError,
    NoAnswerError,
    NothingLearnedError,
    ProcessLostError,
    StorageError,
    TrainingDivergedError,
)
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.features import features
from infrastructure.core.messages import WORDS
from infrastructure.core.optional import DISTRIBUTION
from infrastructure.core.stop_signals import StopSignal
from tests.slow import slow_but

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infrastructure", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_that_of_the_distribution(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"temper {importlib.metadata.version(DISTRIBUTION)}\n"


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_the_help_has_every_command_in_its_group(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    shown = capsys.readouterr().out.splitlines()
    for title, commands in GROUPS.items():
        below = shown[shown.index(f"{title}:") + 1 :]
        listed = [line.split()[0] for line in below[: below.index("")] if line.strip()]
        assert [name for name in commands if name not in listed] == []
    assert not any(HIDDEN in line for line in shown)


@pytest.mark.parametrize(("old", "name"), SAME_COMMANDS.items())
def test_a_command_has_its_other_names(
    old: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([old, "--help"], ["help", old]):  # under the name that was typed
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: temper {old} ")


def test_help_answers_in_under_a_second() -> None:
    """In seconds of processor time, and the least of some, so that a busy machine does not decide;
    the first start compiles the sources."""
    seconds: list[float] = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        completed = run("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert completed.returncode == ExitCode.DONE
        assert "resume an interrupted run" in completed.stdout
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 1.0


LOADED_BY_HELP = """
import contextlib, io, sys
from infrastructure.commands.main import COMMANDS, HIDDEN, command, create_parser
with contextlib.redirect_stdout(io.StringIO()):
    create_parser().print_help()
loaded = {"torch", "numpy", "pydantic", "infrastructure.config.schema"} & set(sys.modules)
assert not loaded, loaded
parser = create_parser()
for name in (*COMMANDS, HIDDEN):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        parser.parse_args([name, "--help"])
    assert callable(command(name).run)
    assert not {"torch", "transformers", "dimod"} & set(sys.modules), name
"""


def test_help_loads_no_configuration_and_that_of_a_command_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_HELP],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_command_spends_little_on_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that imports so much, most objects stay."""
    seen: list[tuple[int, int, int]] = []
    before = gc.get_threshold()
    monkeypatch.setattr(importing, "_imports", importing._Imports())
    monkeypatch.setattr(main_module, "main", lambda: seen.append(gc.get_threshold()))
    monkeypatch.setattr(main_module, "leave_the_rest", lambda: None)
    try:
        main_module.main_of_process()
    finally:
        gc.set_threshold(*before)
    assert seen == [importing.COLLECTED_AFTER]


def test_only_the_command_that_is_called_gets_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []

    def counted(name: str, add: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda parser: (added.append(name), add(parser))[1]

    for name in (*COMMANDS, HIDDEN):
        module = command(name)
        monkeypatch.setattr(module, "add_arguments", counted(name, module.add_arguments))
    parser = create_parser()
    parser.format_help()
    assert added == []
    parse(parser, ["train", "--epochs", "3"])
    assert added == ["train"]
    parse(parser, ["backup", "status"])
    assert added == ["train", "backup"]


def test_each_file_of_the_folder_is_a_command_or_a_part_of_all() -> None:
    files = (ROOT / "infrastructure/commands").glob("*.py")
    parts = {"__init__", "main", "parser", "arguments", "settings", "output", "unknown_words"}
    parts |= {"short_help", "questions", "ranks"}
    commands = {path.stem.replace("_", "-") for path in files if path.stem not in parts}
    of_features = {name for feature in features() for name in feature.commands}
    assert commands == {*COMMANDS, HIDDEN} - of_features


def test_wrong_input_is_exit_code_2_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    completed = run("train", "--learnig-rate", "1")
    assert completed.returncode == 2
    meant = "'--learnig-rate'commands.did_you_mean(meant=--learning-rate)"
    assert completed.stderr.strip() == f"temper: commands.unknown_argument(arguments={meant})"
    words = ["train", "--learnig-rate", "1", "--max-step=5", "--learnig-rate", "2"]
    assert main(words) == ExitCode.WRONG_INPUT
    out, err = capsys.readouterr()
    assert "temper: commands.unknown_arguments(arguments='--learnig-rate'" in err
    assert "did_you_mean(meant=--learning-rate)" in err
    assert "did_you_mean(meant=--max-steps)" in err
    assert len(err.splitlines()) == 1
    assert (completed.stdout, out) == ("", "")


@pytest.mark.parametrize(
    "words",
    [
        ["a.jsonl", "b.jsonl", "--model", "m"],
        ["--model", "m", "a.jsonl", "b.jsonl"],
        ["a.jsonl", "--model", "m", "b.jsonl"],
        ["a.jsonl", "b.jsonl"],
    ],
)
def test_of_two_files_the_second_is_the_one_too_many(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"commands\.second_data_argument"):
        parse(create_parser(), ["train", *words])


def test_all_unknown_flags_are_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORDS)
    with pytest.raises(ValueError, match="unknown") as caught:
        parse(create_parser(), ["train", "--qqxz", "--max-step", "--anser", "--qqxz"])
    assert str(caught.value) == (
        "unknown arguments: '--qqxz', '--max-step' (did you mean --max-steps?), '--anser';"
        " see temper train --help"
    )


def test_config_shows_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_EPOCHS", "7")
    assert main(["config", "--batch-size", "5"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert any("training.batch_size = 5" in li and "(--batch-size)" in li for li in lines)
    assert any("training.num_epochs = 7" in li and "NUM_EPOCHS" in li for li in lines)


def test_a_preset_is_a_flag_and_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_PRESET", "thorough")
    assert main(["config"]) == ExitCode.DONE
    assert "preset thorough (environment TEMPER_PRESET)" in capsys.readouterr().out
    assert main(["config", "--preset", "quick", "--max-steps", "5"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert any("training.max_steps = 5" in li and "(--max-steps)" in li for li in lines)
    assert any("training.warmup_steps = 6" in li and "quick (--preset)" in li for li in lines)
    assert not any("thorough" in line for line in lines)


@pytest.mark.parametrize("command", ["train", "check", "tune", "config"])
def test_what_begins_something_takes_a_preset(command: str) -> None:
    assert "--preset" in known_flags(create_parser(), command)


def test_a_run_that_goes_on_keeps_its_settings_and_takes_no_preset(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["resume", "--preset", "quick"]) == ExitCode.WRONG_INPUT
    assert "commands.unknown_argument" in capsys.readouterr().err


def test_log_level_is_that_of_the_root_logger() -> None:
    assert main(["config", "--log-level", "ERROR"]) == ExitCode.DONE
    assert logging.getLogger().level == logging.ERROR


def test_visible_gpus_are_set_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["config", "--cuda-visible-devices", "0"]) == ExitCode.DONE
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_doctor_lists_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert "Python" in out
    assert "torch" in out.lower()
    assert code in (0, 1)


def test_every_training_flag_is_also_one_of_evaluation() -> None:
    parser = create_parser()
    train, evaluate = known_flags(parser, "train"), known_flags(parser, "eval")
    of_measuring = {"--against", "--measures", "--max-tokens", "--json"}
    of_tasks = {"--tasks", "--tasks-path", "--limit", "--num-fewshot"}
    assert set(train) - {"--accept", "--detach", "--preset"} == (
        set(evaluate) - of_measuring - of_tasks
    )
    assert {"--batch-size", "--epochs", "--model", "--output", "--eval-data", "--config"} <= set(
        train
    )


def test_doctor_and_resuming_take_the_flags_that_they_use() -> None:
    parser = create_parser()
    resume = set(known_flags(parser, "resume"))
    assert {"--output", "--log-level", "--cuda-visible-devices", "--config"} <= resume
    assert {"--batch-size", "--accept", "--learning-rate"} <= resume
    assert "--log-level" in known_flags(parser, "doctor")


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What `temper resume` asks the deployment to do, in an empty folder."""
    calls: list[tuple[Any, ...]] = []

    def resume(
        name: str | None, output_dir: str, changes: Any, accept: list[str], *_: object
    ) -> int:
        given = {setting.key: setting.value for setting in changes}
        calls.append((name, output_dir, given, accept))
        return ExitCode.DONE

    monkeypatch.setattr(resume_command, "resume", resume)
    monkeypatch.chdir(tmp_path)
    for variable in ("CUDA_VISIBLE_DEVICES", "LOG_LEVEL", "OUTPUT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return calls


@pytest.mark.parametrize("variable", ["OUTPUT_DIR", "TEMPER_OUTPUT_DIR"])
def test_runs_are_resumed_from_the_folder_that_is_configured(
    variable: str,
    resumed: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert main(["resume"]) == ExitCode.DONE
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/training_config.yaml").write_text("output_dir: of-the-file\n")
    assert main(["resume", "a"]) == ExitCode.DONE
    monkeypatch.setenv(variable, "of-the-environment")
    assert main(["resume"]) == ExitCode.DONE
    assert main(["resume", "--output", "of-the-flag"]) == ExitCode.DONE
    assert resumed == [
        (None, "runs", {}, []),
        ("a", "of-the-file", {}, []),
        (None, "of-the-environment", {}, []),
        (None, "of-the-flag", {}, []),
    ]


def test_what_is_given_when_resuming_replaces_what_was_recorded(
    resumed: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_LEVEL", "warning")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert main(["resume", "--cuda-visible-devices", "3"]) == ExitCode.DONE
    given = {"log_level": "WARNING", "cuda_visible_devices": "3"}
    assert resumed == [(None, "runs", given, [])]
    assert logging.getLogger().level == logging.WARNING
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_run_goes_on_with_the_flags_of_now_and_not_with_the_file_of_now(
    resumed: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/training_config.yaml").write_text("training:\n  seed: 7\n")
    given = ["--epochs", "5", "--accept", "num_epochs, data"]
    assert main(["resume", "a", *given]) == ExitCode.DONE
    assert resumed == [("a", "runs", {"training.num_epochs": 5}, ["num_epochs", "data"])]


SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"


def break_down(options: object) -> int:
    error = RuntimeError(f"CUDA error with\n{SECRET}")
    error.add_note("and a note")
    raise error


BROKEN_AT = f"test_main.py:{break_down.__code__.co_firstlineno + 3} (break_down)"


def test_an_error_that_nobody_foresaw_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "run", break_down)
    assert main(["train"]) == ExitCode.FAILED
    assert capsys.readouterr().err == (
        f"temper: RuntimeError: CUDA error with *** at {BROKEN_AT} (and a note)"
        "commands.how_to_see_traceback()\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("core.nested_too_deep", max_depth=3), 2, "core.nested_too_deep(max_depth=3)"),
        (ValueError("wrong"), 2, "wrong"),
        (StorageError("broken"), 2, "broken"),
        (NoAnswerError("silent"), 1, "silent"),
        (ProcessLostError("rank 1 is gone"), 75, "rank 1 is gone"),
        (OSError(28, "No space left", "a"), 1, "[Errno 28] No space left: 'a'"),
        (PermissionError(13, "denied", "a"), 1, "commands.permission_denied(path=a)"),
        (PermissionError("denied"), 1, "denied"),
        (BrokenPipeError("gone"), 1, "gone"),
    ],
)
def test_an_error_is_one_sentence_and_its_kind_decides_the_exit_code(
    error: Exception,
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(options: object) -> int:
        raise error

    error.add_note("first")
    error.add_note("second")
    fail.__module__ = "infrastructure.commands.train"
    monkeypatch.setattr(train, "run", fail)
    monkeypatch.setattr(main_module, "error_place", lambda error: None)  # it is one of ours
    assert main(["train"]) == code
    assert capsys.readouterr() == ("", f"temper: {line} (first) (second)\n")


@pytest.mark.parametrize(
    ("error", "words", "code", "is_named"),
    [
        (KeyboardInterrupt(), ["train"], 130, True),
        (KeyboardInterrupt(), ["train-resume"], 130, True),
        (KeyboardInterrupt(), ["config"], 130, False),
        (StopSignal(15), ["train"], 143, True),
        (StopSignal(1), ["train", "--new-run"], 129, False),
    ],
)
def test_what_was_interrupted_has_the_exit_code_of_the_signal(
    error: BaseException,
    words: list[str],
    code: int,
    is_named: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(options: object) -> int:
        raise error

    monkeypatch.setattr(command(SAME_COMMANDS.get(words[0], words[0])), "run", interrupt)
    assert main(words) == code
    how = "commands.interrupted_how_to_resume()" if is_named else ""
    assert capsys.readouterr() == ("", f"temper: interrupted{how}\n")


def test_a_feature_may_answer_in_place_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int | None] = [None, 7]
    modules = [SimpleNamespace(run=lambda options: answers.pop(0)) for _ in range(3)]
    monkeypatch.setattr(main_module, "additions", lambda name: modules)
    monkeypatch.setattr(main_module, "_add_arguments", lambda name, parser: None)
    monkeypatch.setattr(main_module, "_start_debugging", lambda options: None)
    monkeypatch.setattr(train, "run", None)
    assert main(["train"]) == 7
    assert answers == []


@pytest.mark.parametrize("error", [TrainingDivergedError, NothingLearnedError])
def test_no_supervisor_restarts_what_would_end_the_same_again(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(options: object) -> int:
        raise error("the loss is NaN")

    monkeypatch.setattr(train, "run", end)
    code = main(["train"])
    unit = (ROOT / "examples/machines/temper.service").read_text()
    assert f"RestartPreventExitStatus={code}\n" in unit


def test_a_traceback_is_shown_on_request_and_holds_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "run", break_down)
    assert main(["train", "--log-level", "debug"]) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert "in break_down" in err
    assert SECRET not in err
    last = f"temper: RuntimeError: CUDA error with *** at {BROKEN_AT} (and a note)"
    assert err.splitlines()[-1] == last


def test_the_traceback_of_wrong_input_holds_no_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "https://me:letmein99@example.org/rows"
    assert main(["train", url, "--log-level", "DEBUG"]) == ExitCode.WRONG_INPUT
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "letmein99" not in err
    assert "config.web_address_given" in err.splitlines()[-1]


@pytest.mark.parametrize("arguments", slow_but([["config"]], [["config"], ["train", "--help-all"]]))
def test_a_reader_that_has_gone_is_no_error(arguments: list[str]) -> None:
    """As after `temper config | head -1`; nothing is said, as the field does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "temper", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate()[1] == b""
    assert process.returncode == ExitCode.READER_GONE


def test_words_may_stand_behind_flags() -> None:
    """Of a command that can do without its second word argparse would not know it there."""
    parsed = [
        parse(create_parser(), line.split())
        for line in (
            "eval m d.jsonl --against other --json",
            "eval m --against other d.jsonl --json",
            "eval m --against other --json d.jsonl",
        )
    ]
    assert parsed[0] == parsed[1] == parsed[2]
    for line in ("eval m d.jsonl --json more", "eval --json m --against d.jsonl e f"):
        with pytest.raises(ValueError, match=r"commands\.(second_data|unknown)_argument"):
            parse(create_parser(), line.split())


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        (["train", "d.csv"], True),
        (["sweep", "d.csv"], True),
        (["queue", "run"], True),
        (["queue", "list"], False),
        (["tune", "d.csv"], False),
        (["train", "d.csv", "--new-run"], False),
    ],
)
def test_after_an_interrupt_the_way_on_is_named(words: list[str], is_named: bool) -> None:
    assert ("commands.interrupted_how_to_resume" in _how_to_go_on(words)) is is_named


def test_names_of_several_flags_are_taken_together() -> None:
    parser = create_parser()
    train = ["train", "--accept", "data, seed", "--accept", "batch_size"]
    assert parse(parser, train).accept == ["data", "seed", "batch_size"]
    assert parse(parser, ["train"]).accept == []
    measured = parse(parser, ["eval", "m", "d", "--measures", "f1", "--measures", "rouge1"])
    assert measured.measures == ["f1", "rouge1"]
    assert measured.tasks is None
