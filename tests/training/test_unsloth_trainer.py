"""UnslothTrainer with plain transformers in its place; a slow test: for real, on the CPU. The
import of Unsloth changes the whole process, so it has its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.optional import is_installed
from infrastructure.models import model_manager
from infrastructure.models.lora import apply_lora
from infrastructure.models.model_manager import ModelManager
from infrastructure.training import unsloth_trainer
from tests.deployment.runs import small_settings
from tests.seeds.unsloth_loop import train_as_written
from tests.slow import slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, os, sys
from pathlib import Path
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.unsloth_trainer import UnslothTrainer

model, data, cache, saved = sys.argv[1:]
training = {"batch_size": 4, "num_epochs": 3, "learning_rate": 5e-3, "warmup_steps": 0, "seed": 3}
trainer = UnslothTrainer(
    ModelConfig(name=model, lora_config=LoraConfig(r=4)),
    TrainingConfig(**training),
    DataConfig(path=data, eval_path=data, max_length=64, num_workers=0),
    CacheConfig(directory=cache),
    device="cpu",
)
before = trainer.evaluate()["eval_loss"]
state = trainer.train()
trainer.adapter.save(Path(saved))
compiled = os.environ["UNSLOTH_COMPILE_LOCATION"]
after = trainer.evaluate()["eval_loss"]
print(json.dumps({"before": before, "after": after, "steps": state.step, "compiled": compiled}))
"""


def test_the_parts_of_000_are_made_of_one_configuration(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported before the model is loaded, with the folder for what it compiles."""
    calls: list[Any] = []

    def load(source: Any, options: Any, **_: object) -> Any:
        calls.append("loads")
        config = ModelConfig(name=source.location)
        plain = ModelManager(config, device=options.device, seed=3).load()
        return plain.model, plain.tokenizer

    monkeypatch.setattr(
        unsloth_trainer, "prepare_backend", lambda config, cache: calls.append((config, cache))
    )
    monkeypatch.setattr(model_manager, "prepare_backend", lambda config: None)
    monkeypatch.setattr(model_manager, "load_unsloth", load)
    monkeypatch.setattr(
        model_manager, "apply_unsloth_lora", lambda model, lora, **_: apply_lora(model, lora)
    )
    settings = small_settings(tmp_path, max_steps=3, checkpoint_frequency=2)
    settings["model"] = {"name": str(saved_llama), "lora_config": {"r": 4}}
    settings["training"]["num_epochs"] = "auto"
    settings["cache"] = {"directory": str(tmp_path / "cache")}
    assert train_as_written(settings) == {
        "steps": 3,
        "saved": 2,
        "epochs": 1,
        "device": "cpu",
        "adapters": ["default"],
    }
    (config, cache), *others = calls
    assert (config.backend, cache) == ("unsloth", tmp_path / "cache")
    assert others == ["loads"]


@slow
@pytest.mark.skipif(not is_installed("unsloth"), reason="unsloth is not installed")
def test_it_trains_and_plain_peft_loads_the_result(saved_llama: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(10, 34)]
    data, cache, saved = tmp_path / "rows.jsonl", tmp_path / "cache", tmp_path / "saved"
    data.write_text("\n".join(map(json.dumps, rows)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, (saved_llama, data, cache, saved))],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 18
    assert found["after"] < found["before"] - 0.1
    assert found["compiled"] == str(cache / "unsloth_compiled")

    from peft import AutoPeftModelForCausalLM

    plain = AutoPeftModelForCausalLM.from_pretrained(saved)
    assert plain.peft_config["default"].r == 4
