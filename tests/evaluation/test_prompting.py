"""Questions to saved models: the prompt is written as in training, and answers end as there."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from infrastructure.evaluation import prompting
from infrastructure.evaluation.prompting import Answerer, answer_questions, stop_token_ids
from infrastructure.models.registry import MODELS
from infrastructure.models.saving import save_model
from infrastructure.optimization.gpu_capability import DTYPES
from tests.data.builders import CHATML


def test_answers_come_in_the_order_of_the_questions(saved_llama: Path) -> None:
    questions = ["What is 12 + 5?", "Reverse abc:", "The sky"]
    together = answer_questions(saved_llama, questions, max_tokens=12)
    assert together == [
        answer_questions(saved_llama, [text], max_tokens=12)[0] for text in questions
    ]
    assert len(set(together)) == 3


def test_an_answer_ends_where_those_of_the_run_ended(saved_llama: Path, tmp_path: Path) -> None:
    """The run's record says which special tokens do; here the beginning-of-text one."""
    shutil.copytree(saved_llama, tmp_path / "final")
    recorded = {"data": {"end_tokens": {"<s>": 3, "</s>": 40}}, "configuration": {}}
    (tmp_path / "run.json").write_text(json.dumps(recorded))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "final")
    assert stop_token_ids(tokenizer, str(tmp_path)) == [1, 2]
    assert stop_token_ids(tokenizer, str(saved_llama)) == [2]


def test_an_answer_ends_with_the_positions_of_the_model(
    saved_llama: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers writes on, and its noise looks like an answer."""
    answerer = Answerer(saved_llama, max_tokens=256)
    [answer] = answerer.answers(["Reverse abc:"])
    assert answer.is_cut
    longest = 128 - len(answer.question.prompt_ids)
    assert answerer.why_cut(answer) == (
        f"evaluation.answer_cut_at_positions(tokens={longest}, positions=128)"
    )
    assert "predefined maximum length" not in caplog.text + capsys.readouterr().err
    with pytest.raises(ValueError, match=r"evaluation\.question_too_long.*positions=128"):
        answerer.answers(["Reverse abc: " * 60])
    short = Answerer(saved_llama, max_tokens=3)
    [answer] = short.answers(["Reverse abc:"])
    assert short.why_cut(answer) == "evaluation.answer_cut_at_max_tokens(tokens=3)"


@pytest.mark.parametrize(
    ("of_run", "of_device", "computed"),
    [("bf16", "bf16", "bf16"), ("fp32", "bf16", "fp32"), ("bf16", "fp32", "fp32")],
)
def test_a_run_s_model_answers_in_the_number_format_of_the_run(
    saved_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_run: str,
    of_device: str,
    computed: str,
) -> None:
    """Its table of before and after shows what this format answers."""
    final = tmp_path / "run/final"
    shutil.copytree(saved_llama, final)
    (tmp_path / "run/run.json").write_text(json.dumps({"precision": of_run}))
    monkeypatch.setattr(prompting, "best_precision", lambda _device: of_device)
    seen: list[torch.dtype] = []

    def answering(model: torch.nn.Module, *_given: object, **_named: object) -> list[object]:
        with torch.no_grad():
            seen.append(model(torch.tensor([[1, 2]])).logits.dtype)
        return []

    monkeypatch.setattr(prompting, "generate_answers", answering)
    for name, dtype in ((final, DTYPES.get(computed, torch.float32)), (saved_llama, torch.float32)):
        Answerer(name).answers(["Reverse abc:"])
        assert seen.pop() == dtype


def test_no_question_needs_no_model() -> None:
    assert answer_questions("there/is-no-such-model", []) == []


def test_what_the_template_leaves_out_of_a_prompt_is_noted_once(
    saved_llama: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(saved_llama, tmp_path / "model")
    passes_over = CHATML.replace(" in messages %}", " in messages if m['role'] != 'system' %}")
    for template, num_notes in ((passes_over, 1), (CHATML, 0)):
        (folder / "chat_template.jinja").write_text(template)
        answerer = Answerer(folder, max_tokens=1)
        answerer.answers(["Reverse abc:", "The sky"], "Be brief.")
        assert ["text=Be brief.)" in note for note in answerer.notes] == [True] * num_notes
        answerer = Answerer(folder, max_tokens=1)
        answerer.answers(["Reverse abc:"])
        assert answerer.notes == []


def test_an_answer_may_be_one_token_long(saved_llama: Path) -> None:
    [one], [longer] = (
        Answerer(saved_llama, max_tokens=n).answers(["What is 12 + 5?"]) for n in (1, 12)
    )
    assert one.is_cut
    assert one.text
    assert longer.text.startswith(one.text)
    assert longer.text != one.text


def test_an_answer_of_no_token_is_none(saved_llama: Path) -> None:
    with pytest.raises(ValueError, match=r"evaluation\.max_tokens_too_small.*max_tokens=0"):
        answer_questions(saved_llama, ["a"], max_tokens=0)


def test_a_model_that_writes_no_text_cannot_be_prompted(tmp_path: Path) -> None:
    name = "tactical_mappo"
    save_model(MODELS[name].build(), None, tmp_path / "model", registered_name=name)
    with pytest.raises(ValueError, match=r"evaluation\.model_generates_no_text"):
        answer_questions(tmp_path / "model", ["a"])
