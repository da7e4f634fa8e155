"""Same bits as before: trainings on healthy inputs give the weights that another checkout gives.

    python -m tests.field.same_bits OTHER_CHECKOUT

trains each of the configurations below with the code of this checkout and with that of the other
one, on the same inputs, and compares every tensor file of `final/`. Prints a table; exit code 1 if
one of them differs.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.conftest import save_tiny_llama
from tests.training.methods.method_runs import KINDS, rows_of
from tests.training.methods.method_runs import write_rows as write_method_rows

ROOT = Path(__file__).parents[2]
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PROGRAM = """
import hashlib, json, os, sys
from pathlib import Path

settings = json.loads(Path(sys.argv[1]).read_text())
home = Path(sys.argv[2])
import torch
torch.set_num_threads(1)
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment

for name, values in settings.items():
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        result = "failed"
        try:
            folder = home / name
            values |= {"output_dir": str(folder / "runs"), "device": "cpu", "enable_testing": False}
            values["cache"] = {"directory": str(folder / "cache")}
            summary = TrainingDeployment(DeploymentConfig(**values), say=lambda line: None).run()
            final = Path(summary["paths"]["run"]) / "final"
            digest = hashlib.sha256()
            files = sorted(final.rglob("*.safetensors"))
            assert files
            for file in files:
                digest.update(file.read_bytes())
            result = digest.hexdigest()[:16]
        except BaseException as error:
            result = f"failed: {type(error).__name__}: {error}"[:300]
        finally:
            os.write(write_end, result.encode())
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    print(json.dumps([name, os.read(read_end, 4096).decode()]), flush=True)
    os.close(read_end)
"""


def _rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def _chat(number: int, with_system: bool) -> dict[str, Any]:
    system = [{"role": "system", "content": "Answer briefly."}] if with_system else []
    turns = [
        {"role": "user", "content": f"What is {number} + 2?"},
        {"role": "assistant", "content": f"{number + 2}"},
        {"role": "user", "content": "And twice that?"},
        {"role": "assistant", "content": f"{2 * (number + 2)}"},
    ]
    return {"messages": [*system, *turns]}


def configurations(folder: Path) -> dict[str, dict[str, Any]]:
    """Write models and data into `folder`; the settings of each training by its name."""
    base = str(save_tiny_llama(folder / "llama"))
    pairs = _rows(
        folder / "pairs.jsonl",
        [{"prompt": f"{n} + 1 =", "completion": f"{n + 1}"} for n in range(40)],
    )
    alpaca = _rows(
        folder / "alpaca.jsonl",
        [
            {"instruction": "Add one to the number.", "input": f"number {n}", "output": f"{n + 1}"}
            for n in range(40)
        ],
    )
    chats = _rows(folder / "chats.jsonl", [_chat(n, n % 2 == 0) for n in range(30)])
    texts = _rows(
        folder / "texts.jsonl", [{"text": f"The sky is {n} times blue."} for n in range(40)]
    )
    table = folder / "table.csv"
    table.write_text("question,answer\n" + "".join(f"{n} times 2?,{2 * n}\n" for n in range(40)))
    embedded = {
        "embedded": {
            **{"hidden_size": 32, "num_layers": 2, "num_heads": 2},
            **{"intermediate_size": 32, "vocab_size": 280, "max_positions": 128},
        }
    }

    def own(data: str, model: dict[str, Any], training: dict[str, Any], **more: Any) -> Any:
        steps = {"batch_size": 4, "max_steps": 5, "warmup_steps": 1, "validation_prompts": 0}
        return {
            "model": model,
            "data": {"path": data, "max_length": 96, "num_workers": 0, **more},
            "training": {**steps, "learning_rate": 1e-3, "metrics_sinks": ["jsonl"], **training},
        }

    llama = {"name": base}
    cases = {
        "embedded": own(pairs, embedded, {}),
        "full": own(pairs, llama, {}),
        "lora": own(pairs, {**llama, "lora_config": {"r": 4}}, {}),
        "4-bit lora": own(pairs, {**llama, "lora_config": {"r": 4}, "quantization": "4bit"}, {}),
        "alpaca": own(alpaca, llama, {}),
        "csv": own(str(table), llama, {}),
        "texts": own(texts, llama, {}),
        "chat template": own(chats, llama, {}, chat_template=CHATML),
        "marked template": own(chats, llama, {}, chat_template=MARKED),
        "last answer": own(chats, llama, {}, chat_template=CHATML, train_on="last_answer"),
        "train on all": own(chats, llama, {}, chat_template=CHATML, train_on="all"),
        "no template": own(chats, llama, {}),
        "padded": own(pairs, llama, {}, packing=False),
        "streamed": own(pairs, llama, {}, streaming=True),
        "accumulated": own(pairs, llama, {"gradient_accumulation": 2}),
        "cut": own(texts, llama, {}, over_length="keep_start"),
        "fp32": own(pairs, llama, {"mixed_precision": False}),
    }
    cases["cut"]["data"]["max_length"] = 8
    teacher = str(shutil.copytree(base, folder / "teacher"))
    weights = load_file(f"{teacher}/model.safetensors")
    save_file({name: 1.5 * w for name, w in weights.items()}, f"{teacher}/model.safetensors")
    for method, kind in KINDS.items():
        data = write_method_rows(folder / f"{method}.jsonl", rows_of(kind))
        training: dict[str, Any] = {"method": method, "mixed_precision": False, "seed": 3}
        if kind == "prompts":
            training |= {"max_completion_length": 8}
        if method in ("grpo", "rloo"):
            training |= {"num_generations": 4, "rewards": [r"format=.*\d.*"], "beta": 0.05}
        if method == "distillation":
            training |= {"teacher": teacher}
        cases[method] = own(str(data), llama, training)
        del cases[method]["data"]["num_workers"], cases[method]["training"]["validation_prompts"]
    return cases


def trained(checkout: Path, settings: Path, home: Path) -> dict[str, str]:
    """The hash of the weights of each training by the code of one checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(settings), str(home)]
    process = subprocess.run(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("[")]
    return dict(json.loads(line) for line in lines)


def main(other: Path) -> int:
    """Train with both, print the table, and return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = folder / "settings.json"
        settings.write_text(json.dumps(configurations(folder)))
        before = trained(other, settings, folder / "before")
        now = trained(ROOT, settings, folder / "now")
    differing = 0
    for case, weights in now.items():
        is_same = weights == before.get(case) and not weights.startswith("failed")
        differing += not is_same
        print(f"{case:16} {'same' if is_same else 'DIFFERS'} {weights} {before.get(case)}")
    print(f"{len(now)} configurations, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve()))
