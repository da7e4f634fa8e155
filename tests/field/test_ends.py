"""R1: what ends an answer is where plain readers of a model look for it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.messages import WORDS
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest, Part
from infrastructure.models.model_manager import load_saved
from infrastructure.run.directory import RunDirectory
from tests.deployment.runs import deploy, small_settings
from tests.slow import slow_but

BASE_END = 2
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def base_with_chatml(saved_llama: Path, folder: Path) -> tuple[Path, int]:
    """A base that ends with </s>, whose template ends messages otherwise; the id of that end."""
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    model = AutoModelForCausalLM.from_pretrained(saved_llama)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == BASE_END
    return folder, tokenizer.convert_tokens_to_ids("<|im_end|>")


def ends_of(folder: Path) -> Any:
    return json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


@pytest.mark.parametrize("lora", slow_but([{"r": 4}], [None, {"r": 4}]))
def test_r1_a_saved_model_ends_where_it_was_taught_to(
    saved_llama: Path, tmp_path: Path, lora: dict[str, int] | None
) -> None:
    base, end = base_with_chatml(saved_llama, tmp_path / "base")
    settings = small_settings(tmp_path, num_epochs=1)
    settings["model"] = {"name": str(base), "lora_config": lora}
    run, _ = deploy(DeploymentConfig(**settings))
    assert ends_of(run / "final") == [BASE_END, end]
    request = ExportRequest(part=Part.MERGED) if lora else ExportRequest()
    export_model(RunDirectory(run), None, tmp_path / "export", request)
    assert ends_of(tmp_path / "export") == [BASE_END, end]

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    with torch.no_grad():  # a head that answers with the taught end alone
        model.lm_head.weight.zero_()
        model.lm_head.weight[end] = 0
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
        model.lm_head.bias[end] = 1
    answer = model.generate(torch.tensor([[5, 6]]), max_new_tokens=9, do_sample=False)
    assert answer[0].tolist() == [5, 6, end]


def test_ends_that_are_known_leave_the_configuration_alone(
    saved_llama: Path, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, num_epochs=1)
    settings["model"] = {"name": str(saved_llama)}
    run, _ = deploy(DeploymentConfig(**settings))
    assert ends_of(run / "final") == BASE_END


def test_a_lora_that_was_moved_still_ends_where_it_was_taught_to(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)  # the card's program is one of the words
    base, end = base_with_chatml(saved_llama, tmp_path / "base")
    settings = small_settings(tmp_path, num_epochs=1)
    settings["model"] = {"name": str(base), "lora_config": {"r": 4}}
    run, _ = deploy(DeploymentConfig(**settings))
    moved = (run / "final").rename(tmp_path / "moved")
    loaded = load_saved(moved, device=torch.device("cpu"))
    assert loaded.model.get_base_model().generation_config.eos_token_id == [BASE_END, end]
    program = (moved / "README.md").read_text().split("```python")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(program.replace('"."', repr(str(moved))), names)
    assert names["model"].generation_config.eos_token_id == [BASE_END, end]
