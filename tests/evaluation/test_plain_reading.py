"""A saved model that differs from the trained one is noticed, and rounding is not a difference."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from infrastructure.core.errors import CheckpointError
from infrastructure.data.store.examples import GenerationPrompt
from infrastructure.evaluation import plain_reading
from infrastructure.evaluation.plain_reading import (
    MAX_TOKENS,
    PICTURE_SIDE,
    QUESTIONS,
    Expected,
    OtherAnswersError,
    PlainLoading,
    Trained,
    check_saved,
    distance,
    fixed_picture,
    fixed_questions,
    num_near,
)
from infrastructure.models.saving import save_model
from infrastructure.optimization.memory_prediction import MemoryBudget

CPU = torch.device("cpu")


def one_hot(*tokens: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.nn.functional.one_hot(torch.tensor(tokens), 4).float()


def test_a_distance_is_relative_and_without_a_constant() -> None:
    expected = torch.tensor([[0.0, 2.0]])
    assert distance(torch.tensor([[10.0, 14.0]]), expected) == pytest.approx(1.0)
    assert distance(torch.tensor([[7.0, 9.0]]), expected) == 0.0
    assert 1e11 < distance(expected, torch.ones(1, 2)) < math.inf


def test_tokens_are_near_up_to_the_first_that_is_not() -> None:
    ours = one_hot(0, 1, 2, 3)
    far = ours.clone()
    far[1] *= 1.5
    assert num_near(ours, far, 0.49) == 1
    assert num_near(ours, far, 0.5) == 4
    assert num_near(ours, ours[:2], 0.0) == num_near(ours[:2], ours, 0.0) == 2


class Letters:
    """A tokenizer whose tokens are letters."""

    chat_template: str | None = "a template"

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("abcd"[number] for number in ids)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [f"<{number}>" for number in ids]

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*map(ord, text)]}


NUMBERS = [GenerationPrompt(f"prompt {n}", [1, 2, 3][: n + 1], "", 8) for n in range(2)]


def expected_of(
    answers: list[list[int]], logits: list[torch.Tensor], tolerance: float = 0.1
) -> Expected:
    tokenizer: Any = Letters()
    loading: Any = SimpleNamespace()
    trained = Trained(None, tokenizer, NUMBERS, [3])
    return Expected(trained, answers, logits, tolerance, loading)


def othered(logits: torch.Tensor, row: int, share: float) -> torch.Tensor:
    """The logits, at a distance of `share` in one row."""
    changed = logits.clone()
    changed[row] *= 1 + share
    return changed


OURS = one_hot(0, 1, 2)


@pytest.mark.parametrize(
    ("answer", "logits", "how"),
    [
        ([0, 1, 2], OURS, None),
        ([0, 1, 2], othered(OURS, 1, 0.9), None),  # within ten times the tolerance
        ([0, 1, 2], othered(OURS, 2, 1.1), "saved_logits_differ(prompt=prompt 1)"),
        ([0, 3, 2], othered(OURS, 1, 0.09), None),  # a choice within rounding
        ([0, 3], othered(OURS[:2], 1, 0.09), None),
        ([0, 3, 2], othered(OURS, 2, 1.1), None),  # after it the texts are others
        ([0, 3, 2], othered(OURS, 1, 0.11), "differs(prompt=prompt 1, saved=adc, trained=abc)"),
        ([0, 3, 2], othered(OURS, 0, 0.11), "differs(prompt=prompt 1, saved=adc, trained=abc)"),
        ([0, 1], OURS[:2], "differs(prompt=prompt 1, saved=ab, trained=abc)"),
        ([0, 1, 2, 3], one_hot(0, 1, 2, 3), "differs(prompt=prompt 1, saved=abcd, trained=abc)"),
    ],
)
def test_other_tokens_are_the_same_answer_only_within_rounding(
    answer: list[int], logits: torch.Tensor, how: str | None
) -> None:
    expected = expected_of([[1], [0, 1, 2]], [OURS[1:2], OURS])
    found = expected._difference(1, [[1], answer], [OURS[1:2], logits], 0.1)
    assert (found is None) if how is None else (found is not None and found.endswith(how))


def test_scores_are_compared_as_they_are() -> None:
    scores = torch.tensor([[2.0, 0.0]])
    expected = expected_of([], [scores, scores])
    assert expected._difference(0, [], [scores * 1.09], 0.1) is None
    assert expected._difference(1, [], [scores, scores * 1.5], 0.1) == (
        "evaluation.saved_score_differs(prompt=prompt 1, scores=[[3.0, 0.0]], not [[2.0, 0.0]])"
    )


@pytest.mark.parametrize(
    ("own", "given", "same"), [(0.1, 0.0, None), (0.1, 0.2, 1), (0.2, 0.1, 1), (0.2, 0.0, 1)]
)
def test_the_larger_tolerance_decides_and_equal_answers_are_counted(
    own: float, given: float, same: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer has another token, at a distance of 0.15."""
    expected = expected_of([[0], [0, 1]], [OURS[:1], OURS[:2]], own)
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[3, 2]))
    loading: Any = SimpleNamespace(read=lambda folder: (model, Letters()))
    expected = replace(expected, loading=loading)
    written = ([[0], [0, 3]], [OURS[:1], othered(OURS[:2], 1, 0.15)])
    monkeypatch.setattr(plain_reading, "inner_model", lambda model: model)
    monkeypatch.setattr(plain_reading, "known_ends", lambda model: [3, 2])
    requested: list[object] = []

    def write(model: Any, trained: Trained, ends: object) -> Any:
        requested.append((trained, ends))
        return written

    monkeypatch.setattr(plain_reading, "_written_by", write)
    if same is None:
        with pytest.raises(OtherAnswersError, match=r"folder=.*saved_answer_differs") as caught:
            expected.compare(tmp_path, given)
        assert "saved=ad, trained=ab" in caught.value.difference
    else:
        assert expected.compare(tmp_path, given) == same
    assert requested == [(expected.trained, None)], "by the ends of its own files"


def test_a_model_that_cannot_be_loaded_is_named_with_the_reason(tmp_path: Path) -> None:
    def fail(folder: Path) -> Any:
        raise KeyError("no\n  weights" + "x" * 400)

    loading: Any = SimpleNamespace(read=fail)
    expected = replace(expected_of([], []), loading=loading)
    with pytest.raises(CheckpointError) as caught:
        expected.compare(tmp_path)
    text = str(caught.value)
    assert f"saved_model_differs(folder={tmp_path}, " in text
    assert "evaluation.saved_model_unreadable(reason=KeyError: 'no\\n weights" in text
    assert 250 < text.count("x") < 310


class Other(Letters):
    chat_template = "another template"


class Shifted(Letters):
    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*map(ord, text.replace("1", "2"))]}


@pytest.mark.parametrize(
    ("ends", "tokenizer", "how"),
    [
        ([3], Letters(), None),
        ([0], Letters(), "saved_ends_missing(file=generation_config.json, names=<3>)"),
        ([3], Other(), "evaluation.saved_tokenizer_template_differs()"),
        ([3], Shifted(), "evaluation.saved_tokens_differ(prompt=prompt 1)"),
    ],
)
def test_the_other_files_have_to_be_those_of_the_trained_model(
    ends: list[int],
    tokenizer: Any,
    how: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_reading, "known_ends", lambda model: ends)
    for answers in ([[0], [0, 1]], []):
        expected = expected_of(answers, [])
        if how is None or (not answers and "ends" in how):
            expected._compare_files(tmp_path, None, tokenizer)
            continue
        with pytest.raises(CheckpointError) as caught:
            expected._compare_files(tmp_path, None, tokenizer)
        assert how in str(caught.value)
    pictures: Any = SimpleNamespace()
    seeing = replace(expected_of([[0]], []).trained, pictures=pictures, end_ids=[5, 4])
    expected = replace(expected_of([[0]], []), trained=seeing)
    with pytest.raises(CheckpointError, match=r"names=<4>, <5>\)"):
        expected._compare_files(tmp_path, None, Letters())  # type: ignore[arg-type]
    expected = replace(expected, trained=replace(seeing, end_ids=[]))
    expected._compare_files(tmp_path, None, Other())  # type: ignore[arg-type]


class Processor:
    """A processor with the values that a test sets."""

    def __init__(self, template: str, kind: type, values: dict[str, list[float]]) -> None:
        self.chat_template, self.image_processor = template, kind()
        self.values = {name: torch.tensor(of) for name, of in values.items()}

    def __call__(self, **given: Any) -> dict[str, torch.Tensor]:
        assert given.keys() == {"text", "images", "add_special_tokens", "return_tensors"}
        assert (given["text"], given["add_special_tokens"]) == (["<image>"], False)
        return {**self.values, "input_ids": torch.ones(1), "attention_mask": torch.ones(1)}


class Seeing:
    """An encoder of images with such a processor; the images of rows are larger."""

    mark, background = "<image>", "black"

    def __init__(
        self,
        template: str = "t",
        kind: type = list,
        ids: Sequence[int] = (7, 7),
        **values: list[float],
    ) -> None:
        self.processor: Any = Processor(template, kind, {**VALUES, **values})
        self.ids = [*ids]

    def ids_of(self, image: Any) -> list[int]:
        return self.ids if image.width > PICTURE_SIDE else [7, 7]

    def pixels_of(self, images: Any) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.processor.values["pixel_values"]}

    def kinds(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"token_type_ids": self.processor.values["token_type_ids"]}

    def images(self, pictures: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(width=64, height=60) for _ in pictures]


VALUES = {"pixel_values": [3.0, 4.0], "token_type_ids": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("theirs", "how"),
    [
        (Seeing(), None),
        (Seeing("another"), "evaluation.saved_processor_template_differs()"),
        (Seeing(ids=[7]), "saved_processor_differs(name=tokens, width=64, height=60)"),
        (Seeing(pixel_values=[3.0, 4.001]), "differs(name=pixel_values, width=48, height=48)"),
        (Seeing(pixel_values=[3.0]), "differs(name=pixel_values, width=48, height=48)"),
        (Seeing(token_type_ids=[1.0, 0.0]), "(name=token_type_ids, width=48, height=48)"),
        (Seeing(image_sizes=[1.0]), "(name=image_sizes, width=48, height=48)"),
        # The processor of another library rounds otherwise.
        (Seeing(kind=dict, pixel_values=[3.0, 4.09]), None),
        (Seeing(kind=dict, pixel_values=[3.0, 4.11]), "(name=pixel_values, width=48, height=48)"),
    ],
)
def test_the_saved_processor_has_to_give_the_same_for_each_image(
    theirs: Any, how: str | None, tmp_path: Path
) -> None:
    ours: Any = Seeing()
    shown = [replace(NUMBERS[0], pictures=(object(),)), NUMBERS[1]]  # type: ignore[arg-type]
    trained = replace(expected_of([], []).trained, pictures=ours, questions=shown)
    expected = replace(expected_of([], []), trained=trained)
    if how is None:
        expected._compare_seeing(tmp_path, theirs)
        return
    with pytest.raises(CheckpointError) as caught:
        expected._compare_seeing(tmp_path, theirs)
    assert how in str(caught.value)


def test_an_input_that_the_saved_processor_lacks_is_named() -> None:
    ours: Any = Seeing()
    theirs: Any = Seeing()
    del theirs.processor.values["token_type_ids"]
    assert plain_reading._other_input(ours, theirs, fixed_picture()) == "token_type_ids"


def test_the_built_in_questions(saved_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    questions = fixed_questions(tokenizer)
    assert [question.prompt for question in questions] == [*QUESTIONS]
    assert [question.expected_length for question in questions] == [8] * 3
    assert not any(question.pictures for question in questions)
    whole = [question.prompt_ids for question in fixed_questions(tokenizer, 1000)]
    for longest in (MAX_TOKENS, 5):
        ids = [question.prompt_ids for question in fixed_questions(tokenizer, longest)]
        assert ids == [of[:longest] for of in whole]
    image = fixed_picture()
    assert image.size == (48, 48)
    assert [image.getpixel((0, 0)), image.getpixel((1, 0))] == [(0, 7, 14), (21, 28, 35)]
    assert image.getpixel((0, 1)) == tuple(7 * (48 * 3 + n) % 256 for n in range(3))


class Inner(torch.nn.Linear):
    """The part of a model that options are read from."""

    def __init__(self, dtype: torch.dtype = torch.float32, **config: Any) -> None:
        super().__init__(2, 2, dtype=dtype)
        kind = type("Config", (SimpleNamespace,), {"__module__": config.pop("module", "a.b")})
        self.config = kind(_attn_implementation="eager", **config)


class ForScores(Inner):
    pass


ForScores.__name__ = "LlamaForSequenceClassification"
PLAIN = {"attn_implementation": "eager", "trust_remote_code": False}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Inner(), PlainLoading("AutoModelForCausalLM", PLAIN, {"dtype": torch.float32})),
        (
            Inner(torch.bfloat16, vision_config=1, module="transformers_modules.x"),
            PlainLoading(
                "AutoModelForImageTextToText",
                {**PLAIN, "trust_remote_code": True},
                {"dtype": torch.bfloat16},
            ),
        ),
        (
            ForScores(vision_config=1, quantization_config="4 bits", num_labels=1),
            PlainLoading(
                "AutoModelForSequenceClassification",
                PLAIN,
                {
                    "dtype": torch.float32,
                    "quantization_config": "4 bits",
                    "device_map": {"": CPU},
                    "num_labels": 1,
                },
            ),
        ),
        (
            Inner(dtype=torch.float32).to("meta"),
            PlainLoading(
                "AutoModelForCausalLM",
                {**PLAIN, "device_map": {"": torch.device("meta")}},
                {"dtype": torch.float32},
            ),
        ),
    ],
)
def test_a_model_is_loaded_as_it_was_trained(model: Any, expected: PlainLoading) -> None:
    assert PlainLoading.like(model) == expected


def test_a_reward_model_with_lora_is_read_back_with_its_head(
    saved_llama: Path, tmp_path: Path
) -> None:
    """The head of one score is in the LoRA; from its files alone, the base would get two."""
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    with torch.random.fork_rng(devices=[]):
        base = AutoModelForSequenceClassification.from_pretrained(saved_llama, num_labels=1)
        model: Any = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2))
    save_model(model, tokenizer, tmp_path / "lora")
    card = (tmp_path / "lora" / "README.md").read_text()
    assert "AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)\n" in card
    again, _ = PlainLoading.like(model).read(tmp_path / "lora")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_router_logits_are_off_in_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_reading, "has_router_logits", lambda model: True)
    of_base = PlainLoading.like(Inner()).of_base
    assert of_base == {"dtype": torch.float32, "output_router_logits": False}


@pytest.mark.parametrize(("is_lora", "has_ends"), [(False, False), (True, False), (True, True)])
def test_a_lora_is_loaded_on_its_base_and_with_its_own_ends(
    is_lora: bool, has_ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, is_there in (("adapter_config.json", is_lora), ("generation_config.json", has_ends)):
        if is_there:
            (tmp_path / name).write_text("{}")
    calls: list[Any] = []

    class Loaded(torch.nn.Linear):
        generation_config: Any = "of the base"

        def __init__(self) -> None:
            super().__init__(1, 1)

    def kept(what: str, result: Any) -> Any:
        def load(*given: Any, **named: Any) -> Any:
            calls.append((what, *given, named) if named else (what, *given))
            return result or given[0]

        return SimpleNamespace(from_pretrained=load)

    loaded = Loaded()
    packages: dict[str, Any] = {
        "transformers": SimpleNamespace(
            A=kept("model", loaded),
            AutoTokenizer=kept("tokenizer", "a tokenizer"),
            GenerationConfig=kept("ends", "of the folder"),
            AutoProcessor=kept("processor", "a processor"),
        ),
        "peft": SimpleNamespace(PeftModel=kept("lora", None)),
    }
    monkeypatch.setattr(plain_reading, "require", lambda name, code: packages[name])
    base = SimpleNamespace(location="org/base", revision="abc")
    monkeypatch.setattr(plain_reading, "base_of_lora", lambda folder: base)
    laid_out: list[object] = []
    monkeypatch.setattr(plain_reading, "keep_trainable_layout", laid_out.append)
    options = {"attn_implementation": "eager", "trust_remote_code": True}
    loading = PlainLoading("A", options, {"dtype": "bf16"})
    assert loading.read(tmp_path) == (loaded, "a tokenizer")
    assert not loaded.training
    assert laid_out == [loaded]
    assert loaded.generation_config == ("of the folder" if has_ends else "of the base")
    more = {"dtype": "bf16", "revision": "abc"} if is_lora else {}
    assert calls == [
        ("model", "org/base" if is_lora else str(tmp_path), {**options, **more}),
        *([("lora", loaded, str(tmp_path))] if is_lora else []),
        *([("ends", tmp_path)] if has_ends else []),
        ("tokenizer", tmp_path),
    ]
    assert loading.read_processor(tmp_path) == "a processor"
    assert calls[-1] == ("processor", tmp_path, {"trust_remote_code": True})


def test_answers_are_short_and_end_with_their_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Inner()
    model.can_generate = lambda: True
    longest: list[list[int]] = []
    logits = [one_hot(n % 4, 3) for n in range(3)]

    def generate(
        of: object,
        tokenizer: object,
        questions: object,
        lengths: list[int],
        *more: Any,
        **named: Any,
    ) -> Any:
        assert (of, questions) == (model, trained.questions)
        assert named == {"return_dict_in_generate": True, "output_logits": True}
        longest.append([*lengths, *more[1:]])
        sequences = torch.tensor([[9, 9, 0, 3, 1], [9, 9, 1, 2, 1]])
        return SimpleNamespace(sequences=sequences, logits=logits), 2

    monkeypatch.setattr(plain_reading, "generate_greedily", generate)
    monkeypatch.setattr(plain_reading, "known_ends", lambda model: [2])
    trained = replace(expected_of([], []).trained, model=model)
    answers, seen = plain_reading._written_by(model, trained, [3])
    assert answers == [[0, 3], [1, 2, 1]]
    assert [of.argmax(-1).tolist() for of in seen] == [[0, 1], [3, 3, 3]]
    answers, _ = plain_reading._written_by(model, trained, None)
    assert answers == [[0, 3, 1], [1, 2]]
    assert longest == [[16, 16, [3]], [16, 16, None]]
    long = [replace(question, expected_length=25) for question in NUMBERS]
    for positions, most in ((None, 32), (12, 10), (2, 1), (1, 1)):
        model.config.max_position_embeddings = positions
        trained = replace(trained, questions=long)
        plain_reading._written_by(model, trained, [3])
        assert longest[-1][:2] == [most, most]


def test_a_model_that_scores_texts_gives_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Inner()
    model.can_generate = lambda: False
    model.forward = lambda input_ids: SimpleNamespace(logits=input_ids.sum(-1, keepdim=True))
    trained = replace(expected_of([], []).trained, model=model)
    answers, scores = plain_reading._written_by(model, trained, [3])
    assert answers == []
    assert [of.tolist() for of in scores] == [[[1.0, 0.0]], [[3.0, 0.0]]]


@pytest.mark.parametrize(("is_half", "tolerance"), [(False, 1e-3), (True, 0.05)])
def test_a_trained_model_ends_where_its_settings_and_the_evaluation_end_it(
    is_half: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = Inner()
    requested: list[object] = []

    def write(of: object, trained: Trained, ends: object) -> Any:
        assert of is model
        requested.append((ends, torch.is_autocast_enabled("cpu")))
        return [[0]], [OURS[:1]]

    monkeypatch.setattr(plain_reading, "_written_by", write)
    monkeypatch.setattr(plain_reading, "known_ends", lambda model: [9, 1])
    trained = replace(expected_of([], []).trained, model=model, end_ids=[5, 1])
    half = partial(torch.autocast, "cpu", torch.bfloat16, enabled=is_half)
    expected = Expected.of(replace(trained, autocast=half))
    assert requested == [([1, 5, 9], is_half)]
    assert expected.tolerance == tolerance
    assert (expected.answers, expected.trained.model) == ([[0]], None)
    assert expected.loading == PlainLoading.like(model)


@pytest.mark.parametrize(
    ("there_bytes", "is_sharded", "added", "reason"),
    [
        (29 + 100, False, [], None),
        (28 + 100, False, [], "memory_too_small_to_verify(needed=29 B)"),
        (0, True, ["x"], "evaluation.model_is_sharded()"),
        (0, False, ["x"], "evaluation.extension_weights_unread()"),
    ],
)
def test_a_model_that_cannot_be_loaded_a_second_time_is_noted(
    there_bytes: int,
    is_sharded: bool,
    added: list[str],
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its weights have 24 bytes, and this process holds 100."""
    model: Any = Inner()
    for name, value in (("is_sharded", is_sharded), ("added_modules", added)):
        monkeypatch.setattr(plain_reading, name, lambda _, value=value: value)
    monkeypatch.setattr(plain_reading, "resident_bytes", lambda: 100)
    monkeypatch.setattr(plain_reading, "release_memory", lambda: None)
    monkeypatch.setattr(MemoryBudget, "size_bytes", lambda self, device: there_bytes)
    compared: list[object] = []

    def of(trained: Trained) -> Any:
        assert not model.training
        torch.rand(3)
        return SimpleNamespace(compare=compared.append)

    monkeypatch.setattr(Expected, "of", of)
    monkeypatch.setattr(plain_reading, "rounded_beside", lambda folder: rounded)
    trained = replace(expected_of([], []).trained, model=model.train())
    for rounded in (None, tmp_path / "rounded"):
        torch.manual_seed(3)
        notes = check_saved(tmp_path / "final", trained)
        folder = rounded or tmp_path / "final"
        assert (compared[-1:] == [folder]) is (reason is None)
        assert model.training
        after = torch.rand(1)
        torch.manual_seed(3)
        assert torch.equal(after, torch.rand(1)), "random numbers stay the same"
        if reason is None:
            assert notes == []
        else:
            [note] = notes
            assert note.startswith(f"evaluation.saved_model_not_verified(folder={folder.name}, ")
            assert reason in note


def test_a_saved_model_that_was_changed_is_noticed(saved_llama: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved_llama).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    model.generation_config.eos_token_id = [2, 1]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    trained = Trained(model, tokenizer, fixed_questions(tokenizer), [2])
    expected = Expected.of(trained)
    assert (expected.tolerance, expected.trained.model) == (1e-3, None)
    assert expected.compare(tmp_path) == 3
    half = Expected.of(replace(trained, model=model.to(torch.bfloat16)))
    assert half.tolerance == 0.05
    with torch.no_grad():
        model.float().model.norm.weight.neg_()
    model.save_pretrained(tmp_path)
    with pytest.raises(OtherAnswersError, match=r"saved_(answer|logits)_differs?\(prompt=What"):
        expected.compare(tmp_path)
