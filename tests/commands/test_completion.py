"""Shells complete commands, flags and their values, and start no Python for it."""

import subprocess
from pathlib import Path

import pytest

from infrastructure.commands.completion import SHELLS, words_of
from infrastructure.commands.main import COMMANDS, create_parser, main

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _temper; printf '%s\\n' "${COMPREPLY[@]}"
"""
COMPLETIONS = {
    ("re",): {"resume"},
    ("tr",): {"train"},
    ("train", "--learn"): {"--learning-rate"},
    ("train", "--dtype", "b"): {"bf16"},
    ("backup", "st"): {"status"},
    ("train", "--quantum-so"): {"--quantum-solver"},
    ("watch", ""): {"runs/one"},
    ("train", ""): {""},
    ("train", "--output", ""): {""},
    ("completion", "z"): {"zsh"},
}


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    program = tmp_path / "complete.bash"
    program.write_text(COMPLETE)
    for words, offered in COMPLETIONS.items():
        command = ["bash", str(program), str(script), "temper", *words]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert {*answer.stdout.removesuffix("\n").split("\n")} == offered, words


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_flag_is_in_the_script(shell: str) -> None:
    tables = list(words_of(create_parser()))
    assert {*COMMANDS} == {*tables[0].commands}
    script = SHELLS[shell](tables)
    for table in tables:
        for flag in table.flags:
            name = flag.lstrip("-") if shell == "fish" else flag
            assert name in script
    assert "train-detached" not in script
