"""Flags that a command would read and not follow are refused, with the way on."""

import json
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.evaluation.request import OF_LEARNING, UNUSED


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["resume", "run", "--new-run"], "commands.resume_with_new_run"),
        (
            ["eval", "MODEL", "PAIRS", "--method", "dpo"],
            "evaluation.flag_no_effect(key=training.method, ",
        ),
        (
            ["eval", "MODEL", "PAIRS", "--lr", "1e-3"],
            "evaluation.flag_no_effect(key=training.learning_rate, ",
        ),
        (
            ["eval", "MODEL", "PAIRS", "--memory-slots", "4"],
            "evaluation.flag_no_effect(key=training.memory.slots, ",
        ),
        (["eval", "MODEL", "PAIRS", "--lora-r", "4"], "reason=evaluation.model_has_own_lora("),
        (
            ["eval", "MODEL", "--tasks", "a", "--method", "dpo"],
            "evaluation.flag_no_effect(key=training.method, ",
        ),
        (
            ["eval", "MODEL", "PAIRS"],
            "columns='chosen' and 'rejected', preferences=deployment.answers_are_measured(",
        ),
    ],
)
def test_what_has_no_effect_is_refused(
    words: list[str],
    shown: str,
    saved_llama: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    row = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"})
    pairs.write_text(f"{row}\n" * 4)
    places = {"MODEL": str(saved_llama), "PAIRS": str(pairs)}
    assert main([places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert shown in error
    assert "sft" not in error


def test_what_is_refused_by_name_is_a_setting() -> None:
    fields = schema_of(DeploymentConfig).fields
    sections = {key.rpartition(".")[0] for key in fields}
    known = {*fields, *sections}
    assert [name for name in OF_LEARNING if f"training.{name}" not in known] == []
    assert {*UNUSED} <= known
