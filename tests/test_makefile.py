"""What each make target types for a person: run with stand-ins that write down their arguments."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, also when these tests run under make themselves."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=outside, capture_output=True, text=True, check=False
    )


def typed(*arguments: str) -> str:
    """The commands that `make` would run."""
    done = make("--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The first line cannot name a Python whose path has a space in it: the shell starts that one.
STAND_IN = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
import json, sys
with open("given.jsonl", "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
"""
STAND_INS = (
    "launch_training.sh",
    "infrastructure/deployment/environment.sh",
    ".venv/bin/temper",
    ".venv/bin/python",
    ".venv-colab/bin/python",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile, in which every program is a stand-in."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in STAND_INS:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN)
        path.chmod(0o755)
    return tmp_path


def last_command(project: Path, *arguments: str) -> list[str]:
    """Program and arguments of the last thing that a target runs."""
    done = make("-C", str(project), *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads((project / "given.jsonl").read_text().splitlines()[-1])


PYTEST = ["-m", "pytest"]
WORKERS = ["-n", "4", "--dist", "worksteal", "--durations", "25"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["train"], ["./launch_training.sh"]),
        (["train", "DATA_PATH=my data.jsonl"], ["./launch_training.sh", "my data.jsonl"]),
        (["train", "FLAGS=--epochs 2"], ["./launch_training.sh", "--epochs", "2"]),
        (["train-resume"], [".venv/bin/temper", "train-resume"]),
        (["train-resume", "CHECKPOINT=run@5"], [".venv/bin/temper", "train-resume", "run@5"]),
        (
            ["train-eval", "MODEL=m", "DATA=d.jsonl", "FLAGS=--run-name 'my run'"],
            [".venv/bin/temper", "train-eval", "m", "d.jsonl", "--run-name", "my run"],
        ),
        (["test"], [".venv/bin/python", *PYTEST, *WORKERS]),
        (["test", "TEST_FLAGS=-k 'a or b'"], [".venv/bin/python", *PYTEST, "-k", "a or b"]),
        (
            ["test-slow"],
            [".venv/bin/python", *PYTEST, *("-m", "slow", "--timeout", "1800"), *WORKERS],
        ),
        (["test-colab"], [".venv-colab/bin/python", *PYTEST, *WORKERS]),
        (["notebooks"], [".venv/bin/python", "-m", "notebooks.build"]),
        (
            ["gpu-check", "GPU_PYTHON=.venv-colab/bin/python"],
            [
                ".venv-colab/bin/python",
                *("-m", "benchmarks.gpu_check"),
                *("--json", "gpu-check.json", "--write", "gpu-check.md"),
            ],
        ),
        (["storm-ranks"], [".venv/bin/python", "-m", "tests.faults.rank_kills"]),
        (
            ["mutants", "JOBS=2"],
            [".venv/bin/python", "-m", "tests.mutants.run", "--jobs", "2"],
        ),
        (
            ["measure-stackwise", "DATA=d.jsonl"],
            [".venv/bin/python", "-m", "benchmarks.stackwise_quality", "d.jsonl"],
        ),
    ],
)
def test_targets(arguments: list[str], command: list[str], project: Path) -> None:
    assert last_command(project, *arguments) == command


SPEED = ("step_profile", "short_attention", "start_time", "quickstart_seeds", "everything_on")
SPEED += ("memory_growth", "data_preparation", "stream_resume", "waiting_threads", "direct_writes")


def test_bench_writes_a_page_of_each_and_goes_on_after_one_that_missed(project: Path) -> None:
    python = project / ".venv/bin/python"
    python.write_text(STAND_IN + "sys.exit('benchmarks.short_attention' in sys.argv)\n")
    done = make("-C", str(project), "bench", "DATA=my d.jsonl")
    assert done.returncode == 2
    assert "missed: short_attention\n" in done.stderr
    lines = map(json.loads, (project / "given.jsonl").read_text().splitlines())
    run = [line[2:] for line in lines if line[1:2] == ["-m"]]
    of_rows = ["--data", "my d.jsonl"]
    assert run[0] == ["benchmarks.throughput", *of_rows, "--write", "benchmarks/results"]
    assert [each[0].removeprefix("benchmarks.") for each in run[1:]] == [*SPEED]
    for name, each in zip(SPEED, run[1:], strict=True):
        assert each[-2:] == ["--write", f"benchmarks/results/{name}.md"]
        assert (each[1:-2] or of_rows) == of_rows
        assert (ROOT / f"benchmarks/{name}.py").exists()


def test_hooks_make_no_environment_that_is_there(project: Path) -> None:
    """The stand-in of Python says that it has what they need."""
    done = make("-C", str(project), "hooks")
    assert done.returncode == 0, done.stderr
    programs = [json.loads(line)[0] for line in (project / "given.jsonl").read_text().splitlines()]
    assert {Path(program).name for program in programs} == {"python"}


def test_hooks_make_the_environment_that_is_not_there(project: Path) -> None:
    (project / ".venv/bin/python").unlink()
    make("-C", str(project), "hooks")
    [first] = map(json.loads, (project / "given.jsonl").read_text().splitlines())
    assert Path(first[0]).name == "environment.sh"


HOSTILE = ("x'; touch pwned; '", "it's.jsonl", "$(touch pwned)", "`touch pwned`", 'a"b', "a$b #c")


@pytest.mark.parametrize("path", [*HOSTILE, "$(shell touch pwned)", "; touch pwned"])
def test_what_make_is_given_is_never_executed(path: str, project: Path) -> None:
    """A path may hold everything that a shell and make have a meaning for."""
    assert last_command(project, "train", f"DATA_PATH={path}")[1:] == [path]
    assert last_command(project, "train-resume", f"CHECKPOINT={path}")[1:] == [
        "train-resume",
        path,
    ]
    assert last_command(project, "train-eval", f"MODEL={path}", f"DATA={path}")[1:] == [
        "train-eval",
        path,
        path,
    ]
    assert last_command(project, "mutants", f"JOBS={path}")[-1] == path
    assert last_command(project, "measure-stackwise", f"DATA={path}")[-1] == path
    make("-C", str(project), "gpu-check", f"GPU_PYTHON={path}")
    assert not (project / "pwned").exists()


@pytest.mark.parametrize(
    "flags", ["; touch pwned", "$(touch pwned)", "`touch pwned`", "&& touch x"]
)
def test_flags_are_words_and_no_program(flags: str, project: Path) -> None:
    assert last_command(project, "train", f"FLAGS={flags}")[1:] == flags.split()
    assert last_command(project, "test", f"TEST_FLAGS={flags}")[3:] == flags.split()
    assert not (project / "pwned").exists()


def test_a_quote_that_is_never_closed_is_reported(project: Path) -> None:
    done = make("-C", str(project), "train", "FLAGS=--run-name 'mine")
    assert done.returncode == 2
    assert "quote" in done.stderr
    assert not (project / "given.jsonl").exists()


def test_tests_run_last_and_after_the_checks() -> None:
    lines = [line for line in typed("test").splitlines() if line]
    assert [
        word for line in lines for word in ("ruff check", "mypy", "pytest") if word in line
    ] == [
        "ruff check",
        "mypy",
        "pytest",
    ]


@pytest.mark.parametrize("missing", ["MODEL=m", "DATA=d"])
def test_evaluation_without_model_or_data_explains_how(missing: str) -> None:
    done = make("train-eval", missing)
    assert done.returncode == 2
    assert "usage: make train-eval MODEL=… DATA=…" in done.stderr


def test_help_names_every_target() -> None:
    done = make()
    declared = {
        line.removeprefix(".PHONY: ")
        for line in (ROOT / "Makefile").read_text().splitlines()
        if line.startswith(".PHONY: ")
    }
    assert {line.split()[0] for line in done.stdout.splitlines()} == declared


def test_a_variable_of_make_is_not_read_as_a_setting(tmp_path: Path) -> None:
    """`make train DATA_PATH=x` must not set Temper's variable of that name a second time."""
    rules = (ROOT / "Makefile").read_text() + "\n.PHONY: probe\nprobe:\n\t@env\n"
    (tmp_path / "Makefile").write_text(rules)
    probe = ["-f", str(tmp_path / "Makefile"), "probe"]
    done = make(*probe, "DATA_PATH=x", "MODEL=m", "DATA=d", "JOBS=2", "GPU_PYTHON=p")
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "PATH" in names
    assert not {"DATA_PATH", "MODEL", "DATA", "JOBS", "GPU_PYTHON"} & names
