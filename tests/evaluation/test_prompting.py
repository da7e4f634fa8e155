"""Questions to saved models: the prompt is written as in training, and answers end as there."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation import prompting
from infrastructure.evaluation.generation import Answer
from infrastructure.evaluation.prompting import Answerer, answer_questions, stop_token_ids
from infrastructure.models.registry import MODELS
from infrastructure.models.saved_model import SourceKind
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


@pytest.mark.parametrize(
    ("quantization", "device", "dequantizes"),
    [("4bit", "cpu", True), ("4bit", "cuda", False), (None, "cpu", False)],
)
@pytest.mark.parametrize(
    ("kind", "sees_pictures", "has_images", "sees"),
    [
        ("hub", False, False, False),
        ("hub", False, True, True),  # only the Hub knows
        ("folder", True, False, True),
        ("folder", False, False, False),
    ],
)
def test_a_model_is_loaded_as_its_run_recorded_it(
    quantization: str | None,
    device: str,
    dequantizes: bool,
    kind: str,
    sees_pictures: bool,
    has_images: bool,
    sees: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Manager:
        """A manager that loads nothing."""

        def __init__(self, config: Any, **more: Any) -> None:
            made.append((config, more, self))

        def load(self) -> None:
            raise ValueError("far enough")

    source = SimpleNamespace(kind=SourceKind(kind))
    monkeypatch.setattr(prompting, "ModelManager", Manager)
    monkeypatch.setattr(prompting, "quantization_of_run", lambda model: quantization)
    monkeypatch.setattr(prompting, "choose_device", lambda name: torch.device(device))
    monkeypatch.setattr(prompting, "find_source", lambda name: source)
    monkeypatch.setattr(prompting, "sees_pictures", lambda of: sees_pictures)
    monkeypatch.setattr(prompting, "_read", lambda path, background: (path, background))
    images = [Path("a.png")] if has_images else []
    with pytest.raises(ValueError, match="far enough"):
        Answerer("the/model", images=images)
    [(config, more, manager)] = made
    assert (config.name, config.quantization) == ("the/model", quantization)
    assert more == {"device": torch.device(device), "seed": 0}
    assert (manager.dequantizes, manager.sees) == (dequantizes, sees)
    if kind == "folder" and not sees_pictures:
        with pytest.raises(
            ValueError, match=r"model_reads_no_images\(model=the/model, image=b\.png\)"
        ):
            Answerer("the/model", images=[Path("b.png")])


def test_an_answer_has_the_positions_that_are_left() -> None:
    answerer = object.__new__(Answerer)
    answerer._max_tokens = 6

    def longest(num_prompt_tokens: int) -> int:
        return answerer._longest(GenerationPrompt("q", [1] * num_prompt_tokens, "", 6))

    def why_cut(num_prompt_tokens: int) -> str:
        prompt = GenerationPrompt("q", [1] * num_prompt_tokens, "", 6)
        return answerer.why_cut(Answer(prompt, "x", is_cut=True))

    answerer._positions = 10
    assert [longest(n) for n in (3, 4, 5, 9)] == [6, 6, 5, 1]
    assert why_cut(4) == "evaluation.answer_cut_at_max_tokens(tokens=6)"
    assert why_cut(5) == "evaluation.answer_cut_at_positions(tokens=5, positions=10)"
    with pytest.raises(ValueError, match=r"question_too_long\(tokens=10, positions=10\)"):
        longest(10)
    answerer._positions = None
    assert longest(1000) == 6


@pytest.mark.parametrize("positions", [None, 0, -1, "many", 7])
def test_the_positions_of_a_model_are_those_of_its_text(positions: object) -> None:
    text = SimpleNamespace(max_position_embeddings=positions)
    expected = 7 if positions == 7 else None
    whole = SimpleNamespace(get_text_config=lambda: text, max_position_embeddings=99)
    for config in (text, whole):
        assert prompting.positions_of(SimpleNamespace(config=config)) == expected
    assert prompting.positions_of(SimpleNamespace()) is None
