"""Tokens of pictures take the places of their marks, as the model's processor writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from infrastructure.data.encoding import picture_tokens as module
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.pictures import PictureError
from infrastructure.data.readers.rows import BadRow, Conversation, Turn
from tests.training.seeing_models import (
    TEXT_TEMPLATE,
    encoded,
    gemma3_processor,
    llava_processor,
    picture,
    save_gemma3,
)


@pytest.fixture(scope="module")
def tokens() -> PictureTokens:
    return PictureTokens(llava_processor(), "llava")


def conversation(*parts: str, answer: str = "red") -> Conversation:
    """A question of texts, and of pictures where a part is a colour's name."""
    shown = [{"type": "image"} if p == "image" else {"type": "text", "text": p} for p in parts]
    content = {"content": shown}
    question = Turn("user", "".join(p for p in parts if p != "image"), json.dumps(content))
    images = tuple(encoded(picture("red", n)) for n in range(parts.count("image")))
    return Conversation((question, Turn("assistant", answer)), pictures=images)


@pytest.mark.parametrize("train_on", ["answers", "all"])
def test_tokens_are_those_of_the_processor_on_the_whole_text(
    tokens: PictureTokens, train_on: str
) -> None:
    encoder = ConversationEncoder(
        tokens.processor.tokenizer, max_length=99, train_on=train_on, pictures=tokens
    )
    (result,) = encoder.encode([conversation("image", "and", "image", "Which colour is it?")])
    assert isinstance(result, Encoded)
    text = "user: <image>and<image>Which colour is it?<|end|>\nassistant: "
    text += "red<|end|>\n" if train_on == "all" else ""  # an answer's tokens begin with it
    images = [picture("red", 0), picture("red", 1)]
    whole = tokens.processor(text=[text], images=images, add_special_tokens=False)["input_ids"][0]
    ids = result.example.input_ids
    assert ids[: len(whole)].tolist() == list(whole)
    answer = tokens.processor.tokenizer("red<|end|>", add_special_tokens=False)["input_ids"]
    assert len(ids) - len(whole) == (0 if train_on == "all" else len(answer) + 1)  # a line break
    is_picture = ids == tokens.mark_id
    assert is_picture.sum() == 8
    assert not result.example.supervised[is_picture].any()
    learnt = result.example.supervised.sum()
    assert learnt == (len(ids) - 8 - 1 if train_on == "all" else len(answer))


def test_gemma_3_is_given_what_its_processor_gives(tmp_path: Path) -> None:
    """Its chat template marks a picture with a token that is none of the picture's own; what the
    processor counts for itself is no argument of the model."""
    folder = save_gemma3(tmp_path / "gemma")
    processor = AutoProcessor.from_pretrained(folder)
    tokens = PictureTokens(processor, "gemma")
    image = picture("red")
    text = "<start_of_image>Which colour is it?"
    whole = processor(text=[text], images=[image], return_tensors="pt")
    shown, _ = tokens.read([encoded(image)], tmp_path)
    given = tokens.inputs(whole["input_ids"], shown)
    assert given.keys() == whole.keys() - {"input_ids", "attention_mask"}
    assert all(torch.equal(torch.as_tensor(given[name]), whole[name]) for name in given)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    with torch.no_grad():
        ours = model(input_ids=whole["input_ids"], **given).logits
        assert torch.equal(ours, model(**whole).logits)


def test_no_token_of_a_picture_is_cut_whose_mark_stays() -> None:
    tokens = PictureTokens(gemma3_processor(), "gemma")
    tokenizer = tokens.processor.tokenizer
    shown = conversation("image", "Which colour is it?")
    turns = (Turn("user", "Well?"), Turn("assistant", "red"), *shown.turns)
    two = Conversation(turns, pictures=shown.pictures)

    def encode(max_length: int) -> Encoded | BadRow:
        encoder = ConversationEncoder(
            tokenizer, max_length=max_length, over_length="keep_start", pictures=tokens
        )
        (result,) = encoder.encode([two])
        return result

    whole = encode(99)
    assert isinstance(whole, Encoded)
    first, *_, last = np.flatnonzero(np.isin(whole.example.input_ids, tokens.token_ids))
    cut = encode(int(first) + 2)
    assert isinstance(cut, BadRow)
    about = f"num_tokens={len(whole.example.input_ids)}, max_length={int(first) + 2}"
    assert cut.detail == f"data.limit_cuts_image({about})"
    assert isinstance(encode(int(last) + 1), Encoded)


def test_a_picture_is_never_cut(tokens: PictureTokens) -> None:
    tokenizer = tokens.processor.tokenizer
    for over_length in ("keep_start", "truncate"):
        encoder = ConversationEncoder(
            tokenizer, max_length=12, over_length=over_length, pictures=tokens
        )
        (result,) = encoder.encode([conversation("image", "Which colour is it? " * 3)])
        assert isinstance(result, BadRow)
        assert result.reason == "over-long"
    encoder = ConversationEncoder(
        tokenizer, max_length=20, pictures=tokens, over_length="keep_start"
    )
    (result,) = encoder.encode([conversation("image", "?", answer="red " * 30)])
    assert isinstance(result, Encoded)
    assert (result.example.input_ids == tokens.mark_id).sum() == 4


def test_without_a_chat_template_the_marks_stand_where_the_pictures_do() -> None:
    processor = llava_processor()
    processor.tokenizer.chat_template = None
    encoder = ConversationEncoder(
        processor.tokenizer, max_length=99, pictures=PictureTokens(processor, "llava")
    )
    (result,) = encoder.encode([conversation("a", "image", "b")])
    assert isinstance(result, Encoded)
    text = processor.tokenizer.decode(result.example.input_ids)
    assert text == "a" + "<image>" * 4 + "b\nred<|end|>"


def test_a_template_that_leaves_pictures_out_is_noticed(tokens: PictureTokens) -> None:
    processor = llava_processor()
    processor.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: "
        "{{ m['content'] if m['content'] is string else 'x' }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    encoder = ConversationEncoder(
        processor.tokenizer, max_length=99, pictures=PictureTokens(processor, "llava")
    )
    (result,) = encoder.encode([conversation("image", "?")])
    assert isinstance(result, BadRow)
    assert "data.image_token_count_mismatch" in result.detail


def test_marks_go_into_the_texts_that_a_text_models_template_writes() -> None:
    processor = llava_processor()
    processor.tokenizer.chat_template = TEXT_TEMPLATE
    pictures = PictureTokens(processor, "llava", has_text_template=True)
    encoder = ConversationEncoder(processor.tokenizer, max_length=99, pictures=pictures)
    (result,) = encoder.encode([conversation("a", "image", "b")])
    assert isinstance(result, Encoded)
    assert "a" + "<image>" * 4 + "b" in processor.tokenizer.decode(result.example.input_ids)


class _Otherwise:
    """A processor that writes another text around a picture that is not alone."""

    image_token = "<image>"

    def __init__(self, processor: Any) -> None:
        self.processor, self.tokenizer = processor, processor.tokenizer

    def __call__(self, text: list[str], **arguments: Any) -> Any:
        if text != ["<image>"]:
            text = [one.replace("<image>", "\n<image>") for one in text]
        return self.processor(text=text, **arguments)


def test_a_processor_that_writes_otherwise_is_refused() -> None:
    pictures = PictureTokens(_Otherwise(llava_processor()), "odd")
    encoder = ConversationEncoder(
        pictures.processor.tokenizer, max_length=99, train_on="all", pictures=pictures
    )
    with pytest.raises(ValueError, match=r"data\.image_encoding_depends_on_text.*name=odd"):
        encoder.encode([conversation("image", "?")])


def test_a_processor_that_refuses_a_picture_is_quoted_with_its_size(tokens: PictureTokens) -> None:
    def refuse(**arguments: Any) -> None:
        raise ValueError("absolute aspect ratio must be smaller than 200")

    refusing = PictureTokens(llava_processor(), "llava")
    refusing.processor = refuse
    refused = r"data\.processor_rejected_image\(sizes=600 x 1, reason=absolute aspect ratio must"
    with pytest.raises(PictureError, match=refused):
        refusing.ids_of(picture("red", size=(600, 1)))
    with pytest.raises(PictureError, match=r"num_tokens=1, mark=<image>, num_images=0\)"):
        tokens.in_place([1, tokens.mark_id], np.zeros(2, dtype=bool), [])


def test_a_processor_without_an_image_token_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"data\.processor_without_image_token.*name=x.*processor=object"
    ):
        PictureTokens(object(), "x")


def test_a_batch_without_pictures_has_the_kinds_of_its_tokens_too() -> None:
    gemma = PictureTokens(gemma3_processor(), "gemma")
    ids = torch.tensor([[1, gemma.token_ids[0], 2], [1, 2, 3]])
    names = {"token_type_ids", "mm_token_type_ids"} & {*gemma.processor.model_input_names}
    assert names
    assert gemma.inputs(ids, []).keys() == names
    for kinds in gemma.inputs(ids, []).values():
        assert kinds.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_the_tokens_of_a_size_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = PictureTokens(llava_processor(), "llava")
    sizes: list[tuple[int, int]] = []
    written = tokens._written

    def noted(text: str, images: Any) -> list[int]:
        sizes.append(images[0].size)
        return written(text, images)

    monkeypatch.setattr(tokens, "_written", noted)
    monkeypatch.setattr(module, "MOST_SIZES", 2)
    for width in (10, 11, 10, 12, 12, 10):
        assert tokens.ids_of(picture("red", size=(width, 9))) == [tokens.mark_id] * 4
    assert sizes == [(10, 9), (11, 9), (12, 9), (10, 9)]


def test_each_mark_gives_way_to_the_tokens_of_its_own_picture() -> None:
    tokens = PictureTokens(llava_processor(), "llava")
    tokens._ids = {(10, 9): [7, 8], (11, 9): [9]}
    images = [picture("red", size=(width, 9)) for width in (10, 11)]
    mark = tokens.mark_id
    mask = np.array([True, False, True, True, True])
    ids, trained = tokens.in_place([1, mark, 2, mark, 3], mask, images)
    assert ids == [1, 7, 8, 2, 9, 3]
    assert trained.tolist() == [True, False, False, True, False, True]


def test_the_background_lies_behind_the_pixels_that_are_kept_too(tmp_path: Path) -> None:
    tokens = PictureTokens(llava_processor(), "llava", background="red")
    shown, images = tokens.read([encoded(Image.new("RGBA", (9, 9), (0, 0, 0, 0)))], tmp_path)
    for image in (*images, *tokens.images(shown)):
        assert image.getpixel((4, 4)) == (255, 0, 0)


def test_the_first_three_rows_with_pictures_are_checked() -> None:
    tokens = PictureTokens(llava_processor(), "llava")
    images = [picture("red")]
    before = tokens.processor.tokenizer("<image>?", add_special_tokens=False)["input_ids"]
    wrong = [*tokens.in_place(before, np.zeros(len(before), dtype=bool), images)[0], 1]
    tokens.check("?", [], [1], [])  # a row without one does not count
    tokens.check("other", before, wrong, images)  # tokenized in pieces
    for _ in range(2):
        with pytest.raises(ValueError, match=r"data\.image_encoding_depends_on_text"):
            tokens.check("<image>?", before, wrong, images)
    tokens.check("<image>?", before, wrong, images)


def test_what_decides_the_tokens_of_a_picture_is_listed() -> None:
    def settings(**given: Any) -> tuple[str, ...]:
        return tuple(PictureTokens(llava_processor(), "llava", **given).settings())

    assert settings() == settings() == settings(has_text_template=True)
    assert settings() != settings(background="black")
    other = PictureTokens(gemma3_processor(), "llava").settings()
    assert [one == another for one, another in zip(settings(), other, strict=True)][:3] == [
        *(False, False, False)
    ]
    changed = PictureTokens(llava_processor(), "llava")
    changed.processor.image_processor.size = {"height": 8, "width": 8}
    assert tuple(changed.settings()) != settings()


def test_only_declared_tokens_that_the_tokenizer_knows_are_those_of_a_picture() -> None:
    processor = llava_processor()
    mark = processor.tokenizer.convert_tokens_to_ids("<image>")
    processor.tokenizer.unk_token = processor.tokenizer.eos_token
    unknown = processor.tokenizer.unk_token_id
    assert unknown is not None
    for declared, expected in (
        (None, [mark]),
        ([], [mark]),
        ([7, None, 8], [7, 8]),
        ([7, unknown], [7]),
    ):
        processor.image_token_ids = declared
        assert PictureTokens(processor, "llava").token_ids == expected
