"""What README and docs/ show is executed, page by page and line by line, in a folder of its own.

The model is tiny, and the names in the pages stand for files that are there: `chats.jsonl`,
`./my-llama`, `RUN`, a place, a repository of a Hub on this machine. What is not executed here is in
ELSEWHERE, with the test that does it.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.monitoring.records.run_list import runs_in
from infrastructure.run.checkpoint_paths import by_step
from tests.backup.backends.hub_server import TOKEN, running_hub
from tests.deployment.runs import ROOT, write_rows
from tests.forks import outcome_of_forked
from tests.slow import slow
from tests.training.seeing_models import save_llava, save_tower, write_colours

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.S)
ELSEWHERE = {
    "./launch_training.sh": "tests/deployment/test_launch_training.py",
    "make": "tests/test_makefile.py",
    "hf": "another program's own command",
    "gsm8k/train.jsonl": "tests/benchmarks: rows that are downloaded first",
    "git": "another program's own command, which needs the network",
    "pip": "another program's own command; tests/test_requirements.py",
    "--tasks": "tests/features/lm_eval: those of the page are not on this machine",
    "gguf": "tests/features/export_gguf: llama.cpp's converter is no package",
    "temper dashboard": "tests/features/dashboard: it runs until it is stopped",
    "docs/colab.md python": "tests/colab, with a stand-in of Colab",
}
OPTIONAL = ("apprise", "trackio")  # in a line that names one, it has to be installed

# What a page takes for granted: a run, and names in its blocks of Python.
NEEDS_A_RUN = (
    "docs/measure-and-export.md",
    "docs/share-your-model.md",
    "docs/watching.md",
    "docs/ways-to-train.md",
)
TRAINER = """
from pathlib import Path
from tests.training.hf_bridge.tiny_trainer import trainer_of
trainer = trainer_of(Path.cwd())
"""
PRELUDES = {
    "README.md": TRAINER,
    "docs/your-own-trainer.md": TRAINER,
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
            for number, line in enumerate(block[2].replace("\\\n", "").splitlines(), first):
                if words := shlex.split(line, comments=True):
                    yield number, words


def is_elsewhere(words: list[str]) -> bool:
    return " ".join(words[:2]) in ELSEWHERE or any(word in ELSEWHERE for word in words)


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def prepared(folder: Path, saved_llama: Path) -> None:
    for name in ("data", "rows", "test", "questions", "answers"):
        write_rows(folder / f"{name}.jsonl")
    numbers = [(f"Reverse {n}", str(n)[::-1]) for n in range(100, 124)]
    write(folder / "chats.jsonl", [{"messages": messages(*pair)} for pair in numbers])
    pairs = [{"prompt": q, "chosen": a, "rejected": a[::-1] + "0"} for q, a in numbers]
    write(folder / "pairs.jsonl", pairs)
    judged = [{"prompt": q, "completion": a, "label": a < "5"} for q, a in numbers]
    write(folder / "judged.jsonl", judged)
    write(folder / "sums.jsonl", [{"prompt": q, "answer": a} for q, a in numbers])
    levels = [("easy", "middle", "hard")[n % 3] for n in range(len(numbers))]
    graded = zip(numbers, levels, strict=True)
    mine = [{"prompt": q, "completion": a, "level": level} for (q, a), level in graded]
    write(folder / "my.jsonl", mine)
    write_colours(folder)
    save_llava(folder / "my-llava")
    save_tower(folder / "my-siglip", "siglip")
    table = "frage,antwort\n" + "".join(f"{q},{a}\n" for q, a in numbers)
    (folder / "rows.csv").write_text(table)
    faq = "customer_says,we_reply\n" + "".join(f"{q},{a}\n" for q, a in numbers)
    (folder / "faq.csv").write_text(faq)
    for name in ("my-llama", "my-large-llama"):
        shutil.copytree(saved_llama, folder / name)
        (folder / name / "chat_template.jinja").write_text(TEMPLATE)
        config = json.loads((folder / name / "config.json").read_text())
        config["max_position_embeddings"] = 1024  # rotary positions have no weights
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "problem.json").write_text('{"linear": [1, 1], "quadratic": [[0, 1, -3]]}')
    (folder / "drive").mkdir()


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))


def messages(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def typed(words: list[str], folder: Path) -> list[str]:
    """The words that a person types here for those of the page."""
    runs = runs_in(folder / "runs")
    run = runs[-1].name if runs else "RUN"
    finished = [path / "final" for path in runs if (path / "final").is_dir()]
    steps = by_step(Store(runs[-1] / "checkpoints")) if runs else {}
    meant = {
        "RUN": run,
        "FOLDER": "my-llama",
        "RUN@400": f"{run}@{min(steps, default=400)}",
        "RUN@best": f"{run}@best",
        "runs/…/final": str(finished[0] if finished else folder / "runs/final"),
        "PLACE": str(folder / "drive/temper"),
        "/mnt/backups": str(folder / "drive/temper"),
        "/content/drive/MyDrive/temper": str(folder / "drive/temper"),
        "OWNER/NAME": "me/tiny",
        "30min": "1min",
    }
    more = {("temper", "watch"): ["--once"]}.get((*words[:2],), []) if len(words) == 2 else []
    if words[:2] == ["temper", "ask"] and len(words) == 3:
        more = ["2 + 3?"]  # else it is a conversation, which needs a terminal
    if words[:2] == ["temper", "train"] and "--model" not in words:
        more = ["--embedded-intermediate-size", "320"]  # 4 bits want multiples of 32
    return [meant.get(word, word) for word in words] + more


def program_of(words: list[str]) -> list[str]:
    if words[0] == "temper":
        return [sys.executable, "-m", "tests.deployment.command_process", *words[1:]]
    if words[0] == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    return ["bash", "-c", " ".join(words)]


def environment(folder: Path, hub: str) -> dict[str, str]:
    return {
        **os.environ,
        "TEMPER_DATA__PATH": str(folder / "data.jsonl"),  # instead of all the sample tasks
        "TEMPER_TRAINING__NUM_EPOCHS": "2",
        "TEMPER_TRAINING__BATCH_SIZE": "4",
        "TEMPER_TRAINING__CHECKPOINT_FREQUENCY": "2",
        "TEMPER_TRAINING__WARMUP_STEPS": "1",
        "TEMPER_CACHE__DIRECTORY": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "HF_ENDPOINT": hub,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(ROOT),
    }


def outcome(
    command: list[str], folder: Path, variables: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    # huggingface_hub reads the Hub's address when it is imported, which a fork has done
    is_forked = command[0] == sys.executable and "--push-to-hub" not in command
    start = outcome_of_forked if is_forked else _outcome
    return start(command, cwd=folder, env=variables, text=True)


def _outcome(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, check=False, **options)


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
    text = text.replace("max_steps=900", "max_steps=8").replace("runs/…/final", "my-llama")
    before = PRELUDES.get(page, "") + (MY_RUN if "my-run" in text and page not in PRELUDES else "")
    program = tmp_path / "program.py"
    program.write_text(f"{before}\n{text}")
    command = [sys.executable, str(program)]
    variables = environment(tmp_path, "http://127.0.0.1:9")
    done = outcome(command, tmp_path, variables)
    assert done.returncode == 0, done.stderr[-2000:]


@slow
def test_the_complete_script_of_an_own_trainer_trains_once(
    saved_llama: Path, tmp_path: Path
) -> None:
    prepared(tmp_path, saved_llama)
    page = (ROOT / "docs/your-own-trainer.md").read_text()
    [script] = [block[2] for block in BLOCK.finditer(page) if "SFTTrainer" in block[2]]
    text = script.replace("/content/drive/MyDrive/temper", str(tmp_path / "drive/temper"))
    (tmp_path / "train.py").write_text(text.replace("max_steps=900", "max_steps=8"))
    variables = environment(tmp_path, "http://127.0.0.1:9")
    weights = []
    for _ in range(2):
        done = outcome([sys.executable, "train.py"], tmp_path, variables)
        assert done.returncode == 0, done.stderr[-2000:]
        folders = tmp_path / "model", tmp_path / "runs/my-sft/final"
        weights += [(folder / "adapter_model.safetensors").read_bytes() for folder in folders]
    assert weights == weights[:1] * 4
    assert "trainer.run_already_finished" in done.stdout
    assert list((tmp_path / "trainer").glob("*")) == []
    assert (tmp_path / "drive/temper/my-sft").is_dir()


@slow
@pytest.mark.parametrize("page", [page for page in PAGES if [*words_of(page)]])
def test_every_command_works_as_it_stands(page: str, saved_llama: Path, tmp_path: Path) -> None:
    prepared(tmp_path, saved_llama)
    if page in NEEDS_A_RUN:
        begin = program_of(typed(["temper", "train", "data.jsonl"], tmp_path))
        assert outcome(begin, tmp_path, environment(tmp_path, "http://127.0.0.1:9")).returncode == 0
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
            done = outcome(command, tmp_path, variables)
            if done.returncode != 0 or "Traceback" in done.stderr:
                end = done.stderr.strip().splitlines()[-3:]
                wrong.append(f"{page}:{line} {shlex.join(words)} → {done.returncode} {end}")
            shutil.rmtree(tmp_path / "folder", ignore_errors=True)
    assert not wrong, "\n".join(wrong)
