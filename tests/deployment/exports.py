"""Runs whose models are exported, and what is in the folders."""

import json
import re
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import SUMS, damaged_files, read_sums
from infrastructure.deployment import export
from infrastructure.run.directory import RunDirectory
from tests.deployment.runs import deploy, small_settings

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def trained_lora(folder: Path, base: Path) -> RunDirectory:
    """A finished LoRA whose matrices have moved."""
    settings = small_settings(folder, max_steps=3, learning_rate=0.02, warmup_steps=0)
    settings["model"] = {"name": str(base), "lora_config": {"r": 4}}
    settings["data"]["chat_template"] = TEMPLATE
    run, _ = deploy(DeploymentConfig(**settings))
    return RunDirectory(run)


def facts_of(folder: Path) -> dict[str, Any]:
    assert damaged_files(folder) == []
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert files == {*map(Path, read_sums(folder)), Path(SUMS)}
    assert not (folder / export.WHOLE).exists()
    return json.loads((folder / "export.json").read_text())


def run_card(folder: Path) -> dict[str, Any]:
    """What the card's code makes, run as it stands in the folder that the card names."""
    [(where, code)] = re.findall(
        r"\n\n([^\n]*)\n\n```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
    )
    assert where == "In the folder of this file:"
    names: dict[str, Any] = {}
    exec(code.replace("max_new_tokens=256", "max_new_tokens=4"), names)
    return names
