"""What README and docs/ show is executed, page by page and line by line, in a folder of its own.

The model is tiny, and the names in the pages stand for files that are there: `chats.jsonl`,
`./my-llama`, `RUN`, a place, a repository of a Hub on this machine. What is not executed here is in
ELSEWHERE, with the test that does it.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from infrastructure.monitoring.records.run_list import runs_in
from tests.backup.backends.hub_server import TOKEN, running_hub
from tests.deployment.runs import ROOT, write_rows
from tests.forks import outcome_of_forked
from tests.slow import slow

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.S)
ELSEWHERE = {
    "./launch_training.sh": "tests/deployment/test_launch_training.py",
    "make": "tests/test_makefile.py",
    "hf": "another program's own command",
    "temper dashboard": "tests/monitoring/dashboard: it runs until it is stopped",
    "docs/colab.md python": "tests/colab, with a stand-in of Colab",
}
OPTIONAL = ("apprise", "trackio")  # in a line that names one, it has to be installed

# What a page takes for granted before its first block of Python.
TRAINER = """
from pathlib import Path
from tests.training.hf_bridge.tiny_trainer import trainer_of
trainer = trainer_of(Path.cwd())
"""
PRELUDES = {
    "README.md": TRAINER,
    "docs/your-own-trainer.md": TRAINER,
    "docs/first-run.md": "",
    "docs/your-data.md": "",
    "docs/watching.md": """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("my-llama")
inputs = torch.tensor([[3, 4, 5]])
batch = {"input_ids": inputs, "labels": inputs}
""",
    "docs/quantum-optimization.md": """
from infrastructure.training import DeploymentConfig, initialize_training
context = initialize_training(DeploymentConfig(data_path="chats.jsonl"))
""",
}
MY_RUN = """
import temper
from pathlib import Path
made = temper.train("data.jsonl", max_steps=4)
Path(made["paths"]["run"]).rename("runs/my-run")
"""


def words_of(page: str) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each command of a page."""
    text = (ROOT / page).read_text()
    for block in BLOCK.finditer(text):
        if block[1] == "bash":
            first = text[: block.start(2)].count("\n") + 1
            for number, line in enumerate(block[2].splitlines(), first):
                if words := shlex.split(line, comments=True):
                    yield number, words


def is_elsewhere(words: list[str]) -> bool:
    return words[0] in ELSEWHERE or " ".join(words[:2]) in ELSEWHERE


def prepared(folder: Path, saved_llama: Path) -> None:
    for name in ("chats.jsonl", "data.jsonl", "rows.jsonl", "test.jsonl", "questions.jsonl"):
        write_rows(folder / name)
    table = "frage,antwort\n" + "".join(f"Reverse {n},{str(n)[::-1]}\n" for n in range(100, 124))
    (folder / "rows.csv").write_text(table)
    shutil.copytree(saved_llama, folder / "my-llama")
    (folder / "drive").mkdir()


def typed(words: list[str], folder: Path) -> list[str]:
    """The words that a person types here for those of the page."""
    runs = runs_in(folder / "runs")
    run = runs[-1].name if runs else "RUN"
    meant = {
        "RUN": run,
        "RUN@400": f"{run}@4",
        "runs/…/final": "runs/final",
        "PLACE": str(folder / "drive/temper"),
        "/content/drive/MyDrive/temper": str(folder / "drive/temper"),
        "OWNER/NAME": "me/tiny",
        "30min": "1min",
    }
    more = {("temper", "watch"): ["--once"]}.get((*words[:2],), []) if len(words) == 2 else []
    return [meant.get(word, word) for word in words] + more


def program_of(words: list[str]) -> list[str]:
    if words[0] == "temper":
        return [sys.executable, "-m", "tests.deployment.queue_process", *words[1:]]
    assert words[0] == "torchrun", words
    return [sys.executable, "-m", "torch.distributed.run", *words[1:]]


def environment(folder: Path, hub: str) -> dict[str, str]:
    return {
        **os.environ,
        "TEMPER_PRESET": "ci",
        "TEMPER_MODEL__EMBEDDED__NUM_LAYERS": "4",
        "TEMPER_CACHE__DIRECTORY": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "HF_ENDPOINT": hub,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(ROOT),
    }


def python_of(page: str) -> str:
    blocks = [
        block[2] for block in BLOCK.finditer((ROOT / page).read_text()) if block[1] == "python"
    ]
    return "\n".join(blocks)


PYTHON = [page for page in PAGES if python_of(page) and f"{page} python" not in ELSEWHERE]


@slow
@pytest.mark.parametrize("page", PYTHON)
def test_every_block_of_python_works(page: str, saved_llama: Path, tmp_path: Path) -> None:
    prepared(tmp_path, saved_llama)
    text = python_of(page).replace("/content/drive/MyDrive/temper", str(tmp_path / "drive/temper"))
    text = text.replace("max_steps=900", "max_steps=8")
    before = PRELUDES[page] + (MY_RUN if "my-run" in text and not PRELUDES[page] else "")
    program = tmp_path / "program.py"
    program.write_text(f"{before}\n{text}")
    command = [sys.executable, str(program)]
    variables = environment(tmp_path, "http://127.0.0.1:9")
    done = outcome_of_forked(command, cwd=tmp_path, env=variables, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@slow
@pytest.mark.parametrize("page", [page for page in PAGES if [*words_of(page)]])
def test_every_command_works_as_it_stands(page: str, saved_llama: Path, tmp_path: Path) -> None:
    prepared(tmp_path, saved_llama)
    wrong = []
    with running_hub() as hub:
        variables: Mapping[str, str] = environment(tmp_path, hub.url)
        for line, words in words_of(page):
            if is_elsewhere(words):
                continue
            if any(name in word for name in OPTIONAL for word in words) and not all(
                importlib.util.find_spec(name) for name in OPTIONAL if name in " ".join(words)
            ):
                continue
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                variables = {**variables, name: value}
                continue
            command = program_of(typed(words, tmp_path))
            done = outcome_of_forked(command, cwd=tmp_path, env=variables, text=True)
            if done.returncode != 0 or "Traceback" in done.stderr:
                end = done.stderr.strip().splitlines()[-3:]
                wrong.append(f"{page}:{line} {shlex.join(words)} → {done.returncode} {end}")
            shutil.rmtree(tmp_path / "folder", ignore_errors=True)
    assert wrong == []
