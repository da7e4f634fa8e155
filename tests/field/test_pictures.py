"""Pictures become pixels by one rule, wherever they are read, and what is decided is told."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding import picture_tokens
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.readers.pictures import PictureError, decode, read_picture
from infrastructure.evaluation.prompting import _read
from infrastructure.evaluation.run_settings import INHERITED, background_of_run
from infrastructure.training.model_adapters.multimodal_adapter import MultimodalModelAdapter
from tests.training.seeing_models import llava_processor

Pixels = npt.NDArray[Any]
GREY, GREY_ALPHA, COLOUR, COLOUR_ALPHA = 0, 4, 2, 6  # types of colour, as PNG numbers them
KINDS = [(GREY, 1), (GREY_ALPHA, 2), (COLOUR, 3), (COLOUR_ALPHA, 4)]


def png(values: Pixels, kind: int, hidden: tuple[int, ...] = ()) -> bytes:
    """A PNG of 8 or 16 bits, written by hand: Pillow writes 16 bits of grey alone."""
    height, width = values.shape[:2]
    bits = 8 * values.dtype.itemsize
    big = values.astype(values.dtype.newbyteorder(">"))
    rows = b"".join(b"\0" + row.tobytes() for row in big)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))]
    parts += [(b"tRNS", struct.pack(f">{len(hidden)}H", *hidden))] if hidden else []
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def saved(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pixels(content: bytes, background: str = "white") -> Pixels:
    image = decode(content, background=background)
    assert image.mode == "RGB"
    return np.asarray(image)


def decided(content: bytes) -> set[str]:
    return set(read_picture(content, Path())[0].decided)


def ramp(channels: int = 1, seed: int = 0) -> Pixels:
    """All values of 8 bits, in an order of chance; opaque where the last channel is alpha."""
    draw = np.random.default_rng(seed)
    values = np.stack([draw.permutation(256).reshape(16, 16) for _ in range(channels)], axis=-1)
    return (values if channels > 1 else values[..., 0]).astype(np.uint8)


def composited(colour: Pixels, alpha: Pixels, background: tuple[int, int, int]) -> Pixels:
    share = alpha[..., None] / 255.0
    return np.asarray(colour * share + np.array(background) * (1 - share))


@pytest.mark.parametrize(("kind", "channels"), KINDS)
def test_r12_16_bits_are_the_same_picture_as_8(kind: int, channels: int) -> None:
    eight = ramp(channels)
    sixteen = eight.astype(np.uint16) * 257
    assert np.array_equal(pixels(png(eight, kind)), pixels(png(sixteen, kind)))
    assert "more than 8 bits" in decided(png(sixteen, kind))
    assert "more than 8 bits" not in decided(png(eight, kind))


@pytest.mark.parametrize(("mode", "form"), [("I;16", "PNG"), ("I;16", "TIFF"), ("I;16B", "TIFF")])
def test_r12_grey_of_16_bits_is_scaled_by_its_range(mode: str, form: str) -> None:
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    order = ">u2" if mode.endswith("B") else "<u2"
    image = Image.frombytes(mode, (16, 16), values.astype(order).tobytes())
    seen = pixels(saved(image, form)).astype(int)
    assert np.abs(seen[..., 0] - values / 65535 * 255).max() < 1
    assert (seen.min(), seen.max()) == (0, 255)


def test_r12_white_is_where_a_tiff_has_it() -> None:
    values = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    zero_is_white = pixels(saved(Image.fromarray(values), "TIFF", tiffinfo={262: 0}))
    zero_is_black = pixels(saved(Image.fromarray(values), "TIFF"))
    assert np.array_equal(zero_is_white, 255 - zero_is_black)
    assert zero_is_black[0, 1, 0] == 1


def test_r12_twelve_bits_have_a_range_of_their_own() -> None:
    """Grey of 12 bits, packed, as microscopes write it."""
    values = np.linspace(0, 4095, 256).astype(np.uint16)
    packed = bytearray()
    for first, second in values.reshape(-1, 2):
        packed += bytes([first >> 4, (first & 15) << 4 | second >> 8, second & 255])
    entries = [(256, 3, 16), (257, 3, 16), (258, 3, 12), (259, 3, 1), (262, 3, 1)]
    entries += [(273, 4, 8 + 2 + 12 * 9 + 4), (277, 3, 1), (278, 3, 16), (279, 4, len(packed))]
    shown = b"".join(
        struct.pack("<HHI", tag, kind, 1) + struct.pack("<I" if kind == 4 else "<Hxx", value)
        for tag, kind, value in entries
    )
    content = b"II*\0" + struct.pack("<IH", 8, len(entries)) + shown + b"\0" * 4 + bytes(packed)
    seen = pixels(content)[..., 0].reshape(-1)
    assert np.abs(seen - values / 4095 * 255).max() < 1
    assert seen.max() == 255


def test_r12_numbers_between_0_and_1_are_scaled() -> None:
    eight = ramp()
    content = saved(Image.fromarray(eight.astype(np.float32) / 255), "TIFF")
    assert np.array_equal(pixels(content), pixels(png(eight, GREY)))
    nearest = saved(Image.fromarray(np.full((2, 2), 0.9999, np.float32)), "TIFF")
    assert (pixels(nearest) == 255).all()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (ramp().astype(np.float32), r"image_range_unknown.*smallest=0.0, largest=255.0"),
        (
            np.full((4, 4), -0.1, np.float32),
            r"image_range_unknown.*smallest=-0.1, largest=-0.1",
        ),
        (np.full((4, 4), np.nan, np.float32), "nan"),
        (ramp().astype(np.int32) * 1000, r"data\.integers_of_unknown_range"),
    ],
)
def test_r12_values_of_unknown_range_are_refused_by_name(values: Pixels, sentence: str) -> None:
    with pytest.raises(PictureError, match=sentence):
        decode(saved(Image.fromarray(values), "TIFF"))


def test_r12_colours_of_lab_are_refused_by_name() -> None:
    image = Image.frombytes("LAB", (2, 2), bytes(12))
    with pytest.raises(PictureError, match=r"data\.lab_colors"):
        decode(saved(image, "TIFF"))


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *(("1", form) for form in ("PNG", "TIFF", "BMP")),
        *(("L", form) for form in ("PNG", "TIFF", "BMP", "JPEG", "GIF", "WEBP")),
        *(("P", form) for form in ("PNG", "TIFF", "BMP", "GIF")),
        *(("RGB", form) for form in ("PNG", "TIFF", "BMP", "JPEG", "WEBP")),
        *(("CMYK", form) for form in ("TIFF", "JPEG")),
        *(("LA", form) for form in ("PNG", "TIFF")),
        *(("RGBA", form) for form in ("PNG", "TIFF", "WEBP")),
        ("YCbCr", "JPEG"),
        ("YCbCr", "TIFF"),
    ],
)
def test_r12_opaque_pictures_of_8_bits_are_what_pillow_makes_of_them(mode: str, form: str) -> None:
    """The same bits as ever, and nothing to tell."""
    colours = Image.fromarray(ramp(3)).convert(mode.removesuffix("A"))
    image = colours.convert(mode)
    content = saved(image, form, **({"lossless": True} if form == "WEBP" else {}))
    with Image.open(io.BytesIO(content)) as opened:
        expected = np.asarray(opened.convert("RGB"))
    assert np.array_equal(pixels(content), expected)
    assert decided(content) == set()


@pytest.mark.parametrize("background", [("white", (255, 255, 255)), ("#102030", (16, 32, 48))])
@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_r13_transparent_pixels_are_laid_on_a_colour(
    mode: str, form: str, background: tuple[str, tuple[int, int, int]]
) -> None:
    name, colour = background
    alpha = ramp(seed=9)
    image = Image.fromarray(ramp(3)).convert(mode[:-1])
    seen = np.asarray(image.convert("RGB")).astype(float)
    image.putalpha(Image.fromarray(alpha))
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    content = saved(image, form, **options)
    expected = composited(seen, alpha, colour)
    assert np.abs(pixels(content, name) - expected).max() <= 1
    assert decided(content) == {"transparent"}


def test_r13_black_ink_on_nothing_can_be_read() -> None:
    ink = np.zeros((8, 8, 4), np.uint8)
    ink[2:4, :, 3] = 255
    seen = pixels(saved(Image.fromarray(ink)))
    assert (seen[2:4] == 0).all()
    assert (seen[4:] == 255).all()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("kind", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_r13_one_colour_can_be_the_transparent_one(kind: int, channels: int, bits: int) -> None:
    """A tRNS chunk of PNG: what has that colour is not there."""
    eight = ramp(channels)
    factor = 257 if bits == 16 else 1
    values = eight.astype(np.uint16 if bits == 16 else np.uint8) * np.array(factor, f"u{bits // 8}")
    hidden = tuple(int(value) for value in np.atleast_1d(values[3, 5]))
    seen = pixels(png(values, kind, hidden), "#ff0000")
    is_hidden = (values.reshape(16, 16, channels) == np.array(hidden)).all(axis=-1)
    assert is_hidden.any()
    assert (seen[is_hidden] == (255, 0, 0)).all()
    assert np.array_equal(seen[~is_hidden], pixels(png(eight, kind))[~is_hidden])


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_r13_a_palette_can_be_transparent(form: str) -> None:
    image = Image.fromarray(ramp() % 4).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
    content = saved(image, form, transparency=2)
    seen, index = pixels(content), ramp() % 4
    assert (seen[index == 2] == 255).all()
    assert (seen[index == 1] == (40, 50, 60)).all()
    assert decided(content) == {"transparent"}


def test_r13_several_alphas_of_a_palette_count() -> None:
    image = Image.fromarray(ramp() % 4).convert("P")
    image.putpalette([0, 0, 0] * 4)
    seen = pixels(saved(image, transparency=bytes([255, 128, 0, 255])))
    index = ramp() % 4
    assert (seen[index == 0] == 0).all()
    assert (np.abs(seen[index == 1].astype(int) - 127) <= 1).all()
    assert (seen[index == 2] == 255).all()


def test_r13_of_several_frames_the_first_is_shown() -> None:
    red, blue = (Image.new("RGB", (6, 6), colour) for colour in ("red", "blue"))
    for form, options in (
        ("GIF", {}),
        ("PNG", {}),
        ("TIFF", {}),
        ("WEBP", {"lossless": True}),
    ):
        content = saved(red, form, save_all=True, append_images=[blue], **options)
        assert (pixels(content) == (255, 0, 0)).all(), form
        assert decided(content) == {"several frames"}, form
    photograph = saved(red, "MPO", save_all=True, append_images=[blue])  # as telephones write it
    assert decided(photograph) == set()


def test_r13_a_picture_of_16_bits_is_turned_upright_too() -> None:
    values = np.arange(8, dtype=np.uint16).reshape(2, 4) * 8000
    exif = Image.Exif()
    exif[0x0112] = 6
    seen = pixels(saved(Image.fromarray(values), exif=exif))
    assert np.array_equal(seen[..., 0], np.rot90(values >> 8, -1))


def rows_of(contents: list[bytes], folder: Path) -> Path:
    shown = [base64.b64encode(content).decode() for content in contents]
    rows = [{"image": f"data:;base64,{one}", "question": "?", "answer": "red"} for one in shown]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def processor() -> Any:
    return llava_processor()


def pipeline(file: Path, processor: Any, background: str = "white", **more: Any) -> DataPipeline:
    settings = {"validation_split": 0.0, "max_bad_rows_percent": 100, "num_workers": 0, **more}
    config = DataConfig(path=str(file), image_background=background, **settings)
    tokens = PictureTokens(processor, "llava", background=config.image_background)
    cache = CacheConfig(directory=str(file.parent / "cache"))
    return DataPipeline(config, processor.tokenizer, cache_config=cache, pictures=tokens)


def trained_on(data: DataPipeline) -> npt.NDArray[Any]:
    """The pixels that the model is given, in the order of the file."""
    data.prepare()
    assert data.pictures is not None
    examples = data.examples(range(data.num_examples))
    shown = [picture for example in examples for picture in example.pictures]
    return np.asarray(data.pictures.pixels(shown)["pixel_values"])


def test_r12_training_and_evaluation_see_what_8_bits_show(processor: Any, tmp_path: Path) -> None:
    seen = []
    for factor, kind in ((1, np.uint8), (257, np.uint16)):
        folder = tmp_path / str(factor)
        folder.mkdir()
        values = [ramp(seed=seed).astype(kind) * np.array(factor, kind) for seed in range(8)]
        file = rows_of([png(value, GREY) for value in values], folder)
        data = pipeline(file, processor, eval_path=str(file))
        questions = data.questions()
        assert len(questions) == 8
        assert data.pictures is not None
        of_questions = [np.asarray(data.pictures.images(q.pictures)[0]) for q in questions]
        notes = [note for note in data.report.notes if note.startswith("data.image_decisions")]
        assert len(notes) == (factor == 257)
        seen.append((trained_on(data), np.array(of_questions), [q.prompt_ids for q in questions]))
    (now, now_questions, ids), (deep, deep_questions, deep_ids) = seen
    assert np.array_equal(now, deep)
    assert np.array_equal(now_questions, deep_questions)
    assert ids == deep_ids
    assert now.std() > 0.1


def test_r13_the_background_decides_what_is_trained_on(processor: Any, tmp_path: Path) -> None:
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[4:6, :, 3] = 255
    file = rows_of([saved(Image.fromarray(ink)), saved(Image.new("RGB", (16, 16)))], tmp_path)
    white, black = (trained_on(pipeline(file, processor, colour)) for colour in ("white", "black"))
    assert not np.array_equal(white[0], black[0])
    assert np.array_equal(white[1], black[1])
    data = pipeline(file, processor, "white")
    assert data.prepare().from_cache
    assert not pipeline(file, processor, "#000001").prepare().from_cache
    (note,) = [note for note in data.report.notes if note.startswith("data.image_decisions")]
    assert "1 row data.image_transparency_removed(background=white)" in note
    assert note in data.report.lines(is_verbose=False)


def test_r12_data_of_another_rule_is_prepared_anew(
    processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = rows_of([png(ramp(), GREY)] * 2, tmp_path)
    assert not pipeline(file, processor).prepare().from_cache
    assert pipeline(file, processor).prepare().from_cache
    monkeypatch.setattr(picture_tokens, "RULE_VERSION", 10**6)
    assert not pipeline(file, processor).prepare().from_cache


def test_r12_what_has_no_known_range_is_set_aside(processor: Any, tmp_path: Path) -> None:
    deep = saved(Image.fromarray(ramp().astype(np.float32)), "TIFF")
    data = pipeline(rows_of([png(ramp(), GREY), deep], tmp_path), processor)
    report = data.prepare()
    assert report.num_train == 1
    assert [(row.line, row.reason) for row in report.quarantine.bad_rows] == [(2, "picture")]


def test_r13_a_row_is_measured_as_it_was_trained() -> None:
    assert "image_background" in INHERITED


def test_r13_a_question_shows_what_training_has_shown(tmp_path: Path) -> None:
    final = tmp_path / "run" / "final"
    final.mkdir(parents=True)
    assert background_of_run(final) == "white"
    recorded = {"configuration": {"values": {"data": {"image_background": "#0000ff"}}}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(recorded))
    assert background_of_run(final) == "#0000ff"
    file = tmp_path / "clear.png"
    file.write_bytes(saved(Image.new("RGBA", (4, 4), (9, 9, 9, 0))))
    picture, image = _read(file, background_of_run(final))
    assert (np.asarray(image) == (0, 0, 255)).all()
    assert picture.decided == ("transparent",)


@pytest.mark.parametrize("colour", ["", "whit", "#12345", "#1234567", "12"])
def test_r13_a_background_is_a_colour(colour: str) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.image_background"):
        DataConfig(image_background=colour)
    assert DataConfig(image_background="White").image_background == "white"


def test_r13_the_adapter_takes_the_background_of_the_settings(processor: Any) -> None:
    cpu = torch.device("cpu")
    adapter = MultimodalModelAdapter(ModelConfig(name="llava"), TrainingConfig(), cpu)
    adapter.data_config = DataConfig(image_background="black")
    adapter._take(processor)
    assert adapter.pictures.background == "black"
    clear = saved(Image.new("RGBA", (4, 4), (9, 9, 9, 0)))
    _, (image,) = adapter.pictures.read([clear], Path())
    assert (np.asarray(image) == 0).all()
