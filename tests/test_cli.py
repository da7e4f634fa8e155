"""The `temper` command: fast help, exit codes, what must be set before torch is imported."""

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.cli import DONE, create_parser, known_flags, main

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infrastructure", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def test_help_answers_in_under_a_second() -> None:
    """In seconds of processor time, so that a busy machine does not decide."""
    run("--help")  # the first start compiles the sources
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    completed = run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert completed.returncode == DONE
    assert "train-resume" in completed.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys; import infrastructure.cli; print(sorted({'torch','numpy'} & set(sys.modules)))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert completed.stdout.strip() == "[]"


def test_wrong_input_is_exit_code_2_without_a_traceback() -> None:
    completed = run("train", "--learnig-rate", "1")
    assert completed.returncode == 2
    assert completed.stderr.strip() == (
        "temper: unknown argument '--learnig-rate'; did you mean --learning-rate?"
    )
    assert completed.stdout == ""


@pytest.mark.usefixtures("restore_logging")
def test_config_shows_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_EPOCHS", "7")
    assert main(["config", "--batch-size", "5"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert any("training.batch_size = 5" in li and "(--batch-size)" in li for li in lines)
    assert any("training.num_epochs = 7" in li and "NUM_EPOCHS" in li for li in lines)


@pytest.mark.usefixtures("restore_logging")
def test_log_level_is_that_of_the_root_logger() -> None:
    assert main(["config", "--log-level", "ERROR"]) == DONE
    assert logging.getLogger().level == logging.ERROR


@pytest.mark.usefixtures("restore_logging")
def test_visible_gpus_are_set_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["config", "--cuda-visible-devices", "0"]) == DONE
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.usefixtures("restore_logging")
def test_doctor_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert "Python" in out
    assert "torch" in out.lower()
    assert code in (0, 1)


def test_every_training_flag_is_also_one_of_evaluation() -> None:
    parser = create_parser()
    train, evaluate = known_flags(parser, "train"), known_flags(parser, "train-eval")
    assert set(train) == set(evaluate)
    assert {"--batch-size", "--epochs", "--model", "--output", "--eval-data", "--config"} <= set(
        train
    )
