"""What is learnt, how answers end and how prompts look, for the many ways that data is given."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.testing.label_checks import check_ends, check_labels, check_template
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Subject
from tests.testing.check_models import save_model_of, settings_of, trainer_of

TEXT = [{"text": f"The number {n} reversed is {str(n)[::-1]}."} for n in range(100, 140)]
CHAT: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": f"Is {n} a number?"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "Which?"},
            {"role": "assistant", "content": str(n)},
        ]
    }
    for n in range(100, 140)
]
LONG = [{"prompt": "x y z " * 60 + str(n), "completion": f"answer {n}"} for n in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny models, with a chat template and without."""
    folder = tmp_path_factory.mktemp("models")
    save_model_of("llama", folder / "template")
    save_model_of("llama", folder / "plain", template=False)
    return folder


def subject(
    folder: Path, tmp_path: Path, model: str, rows: list[dict[str, Any]] | None, **data: Any
) -> Subject:
    settings = settings_of(tmp_path, {"name": str(folder / model)})
    settings["data"] |= {"max_length": 128, **data}
    if rows is not None:
        Path(settings["data"]["path"]).write_text("\n".join(map(json.dumps, rows)))
    return Subject(trainer_of(DeploymentConfig(**settings)))


def found(subject: Subject) -> dict[str, CheckResult]:
    results = (check(subject) for check in (check_labels, check_ends, check_template))
    return {result.name: result for result in results}


@pytest.mark.parametrize("model", ["template", "plain"])
@pytest.mark.parametrize("rows", [None, TEXT, CHAT], ids=["pairs", "text", "chat"])
@pytest.mark.parametrize(
    "data",
    [{}, {"validation_split": 0}, {"train_on": "all"}, {"streaming": True}],
    ids=["held out", "nothing held out", "all learnt", "streaming"],
)
def test_good_data_passes(
    folder: Path, tmp_path: Path, model: str, rows: Any, data: dict[str, Any]
) -> None:
    results = found(subject(folder, tmp_path, model, rows, **data))
    assert {name: r.status for name, r in results.items()} == {
        "labels": "pass",
        "end of answers": "pass",
        "prompts": "pass",
    }, results


def test_prompts_that_were_cut_are_not_looked_for(folder: Path, tmp_path: Path) -> None:
    results = found(subject(folder, tmp_path, "template", LONG, over_length="truncate"))
    assert results["prompts"].status == "pass"
    assert "a question has the same tokens" in results["prompts"].text


def test_answers_that_were_cut_are_told(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "completion": "y z " * (2 + 9 * (n % 2))} for n in range(40)]
    given = subject(folder, tmp_path, "plain", rows, over_length="truncate", max_length=32)
    result = check_ends(given)
    assert result.status == "warn"
    assert "answers end without '</s>'" in result.text
    assert "raise data.max_length" in result.remedy


def test_prompts_are_held_against_the_template_of_the_saved_tokenizer(
    folder: Path, tmp_path: Path
) -> None:
    given = subject(folder, tmp_path, "template", CHAT)
    tokenizer = given.adapter.tokenizer
    assert check_template(given).numbers["num_prompts"] >= 1
    tokenizer.chat_template = tokenizer.chat_template.replace("<s>", "<s> ")
    result = check_template(given)
    assert result.status == "fail"
    assert "in use a prompt goes on after 1 tokens with ' syst" in result.text
