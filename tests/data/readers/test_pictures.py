"""Pictures of rows: every way to give one, and what is set aside, each with file and line."""

import base64
import io
import json
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from infrastructure.config.registries import AUGMENTATIONS
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.readers import pictures
from infrastructure.data.readers.pictures import (
    MANY_BITS,
    MAX_PICTURE_BYTES,
    SEVERAL_FRAMES,
    TRANSPARENT,
    PictureError,
    decisions_in_words,
    decode,
    looks_like_picture,
    picture_source,
    read_picture,
)
from tests.training.seeing_models import encoded, llava_processor, picture

RED = encoded(picture("red"))
BASE64 = base64.b64encode(RED).decode()


def png_header(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and holds nothing."""
    content = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + content + struct.pack(">I", zlib.crc32(content))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT"


LARGE, HUGE = (base64.b64encode(png_header(n, n)).decode() for n in (9_000, 90_000))


@pytest.mark.parametrize(
    "value",
    [
        RED,
        BASE64,
        f"data:image/png;base64,{BASE64}",
        {"bytes": RED, "path": None},
        {"bytes": None, "path": "red.png"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
        {"type": "image", "source": {"type": "base64", "data": BASE64}},
        "red.png",
        "file://red.png",
    ],
)
def test_every_way_to_give_a_picture(value: object, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    found, image = read_picture(picture_source(value, "it"), tmp_path)
    assert image.mode == "RGB"
    assert list(image.get_flattened_data()) == list(picture("red").get_flattened_data())
    assert found.read() == RED


def test_a_photograph_is_turned_upright_as_transformers_does_it() -> None:
    lying = Image.new("RGBA", (4, 2), (1, 2, 3, 255))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    lying.save(file, "PNG", exif=exif)
    upright = decode(file.getvalue())
    assert (upright.size, upright.mode) == ((2, 4), "RGB")


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("a/b.JPG", True),
        ("https://x.org/a.png?s=1", True),
        (b"", True),
        ([{"bytes": b"", "path": None}], True),
        ("a sentence about a picture", False),
        ([], False),
        (3, False),
        (None, False),
        ({"a": 1}, False),
        ({"url": "x"}, True),
        ([b"", 3], False),
        (" a.webp ", True),
        ("a.png?b.txt", True),
        ("a.txt?b.png", False),
        ("data:image/png;base64,AA==", True),
        ("see data:image/png;base64,AA==", False),
        ("A" * 64, True),
        ("A" * 63, False),
        ("A" * 64 + "= a sentence", False),
    ],
)
def test_what_looks_like_a_picture(value: object, is_one: bool) -> None:
    assert looks_like_picture(value) is is_one


def part(picture: object = None) -> dict[str, object]:
    return {"type": "image"} if picture is None else {"type": "image", "image": picture}


def chat(*parts: object) -> dict[str, object]:
    question = [*parts, {"type": "text", "text": "?"}]
    return {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "red"}]
    }


def row_of(image: object, question: str = "?") -> dict[str, object]:
    return {"image": image, "question": question, "answer": "red"}


MARKS = "data.image_marks_mismatch(num_marks"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("missing", row_of("gone.png"), "data.image_not_found(name=gone.png,"),
    ("a folder", row_of("folder.png"), "data.image_not_found(name=folder.png,"),
    ("cut off", row_of(base64.b64encode(RED[:-40]).decode()), "data.image_corrupt("),
    (
        "a text",
        row_of("text.png"),
        "unsupported_image_format(image=data.image_named(name='text.png')",
    ),
    ("large", row_of(f"data:;base64,{LARGE}"), "width=9000, height=9000, max_megapixels=64"),
    ("huge", row_of(f"data:;base64,{HUGE}"), "data.image_too_large_to_decode("),
    ("an address", row_of("https://x.org/a.png"), "data.image_is_url("),
    ("no base64", row_of(f"data:image/png;base64,{BASE64[:-1]}*"), "data.image_not_base64("),
    ("a data URL of text", row_of("data:text/plain,red.png"), "data.data_url_not_base64("),
    (
        "a number",
        row_of([1]),
        "data.value_not_an_image(place=data.place_column(column=image), kind=a number)",
    ),
    ("nothing in it", row_of({"path": None, "bytes": None}), "data.image_without_source("),
    (
        "a list too long",
        row_of(["red.png"] * 2, "<image> ?"),
        f"{MARKS}=1, has=data.column_image_count(column=image, count=2))",
    ),
    (
        "a mark too many",
        row_of("red.png", "<image> <image>"),
        f"{MARKS}=2, has=data.column_image_count(column=image, count=1))",
    ),
    (
        "a mark without picture",
        row_of(None, "what is <image>?"),
        "data.image_token_count_mismatch(num_tokens=1, mark=<image>, num_images=0)",
    ),
    ("an empty path", row_of([" "]), "data.image_source_empty("),
]


@pytest.fixture(scope="module")
def tokens() -> PictureTokens:
    return PictureTokens(llava_processor(), "llava")


def pipeline(path: Path, tokens: PictureTokens | None, **settings: Any) -> DataPipeline:
    config = DataConfig(
        path=str(path), validation_split=0.0, max_bad_rows_percent=100, num_workers=0, **settings
    )
    tokenizer = tokens.processor.tokenizer if tokens else llava_processor().tokenizer
    cache = CacheConfig(directory=str(path.parent / "cache"))
    return DataPipeline(config, tokenizer, cache_config=cache, pictures=tokens)


def test_each_wrong_picture_is_set_aside_with_its_line(
    tokens: PictureTokens, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "text.png").write_text("red")
    (tmp_path / "folder.png").mkdir()
    rows = [row_of("red.png"), *(row for _, row, _ in WRONG)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = pipeline(file, tokens)
    report = data.prepare()
    set_aside = {row.line: row for row in report.quarantine.bad_rows}
    assert report.num_train == 1
    for line, (name, _, sentence) in enumerate(WRONG, 2):
        assert sentence in str(set_aside[line]), name
        assert set_aside[line].reason == "picture", name


def test_pictures_of_messages_are_set_aside_too(tokens: PictureTokens, tmp_path: Path) -> None:
    rows = [chat(part(BASE64)), chat(part()), chat(part("gone.png")), chat(part(BASE64), part())]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = pipeline(file, tokens).prepare()
    assert [row.line for row in report.quarantine.bad_rows] == [2, 3, 4]
    assert "data.row_without_image_column" in str(report.quarantine.bad_rows[0])


def test_a_table_of_pictures_as_datasets_writes_it(tokens: PictureTokens, tmp_path: Path) -> None:
    images = [{"bytes": encoded(picture("red", n)), "path": None} for n in range(4)]
    table = pyarrow.table({"image": images, "question": ["?"] * 4, "answer": ["red"] * 4})
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, file)
    data = pipeline(file, tokens)
    assert data.prepare().num_train == 4
    (batch,) = list(data.train_batches(0, 0, 9))
    shown = sorted(example.pictures[0].read() for example in batch)
    assert shown == sorted(image["bytes"] for image in images)
    again = pipeline(file, tokens)
    assert again.prepare().from_cache
    assert again.fingerprint == data.fingerprint


def test_rows_that_differ_in_the_picture_alone_are_other_rows(
    tokens: PictureTokens, tmp_path: Path
) -> None:
    prints = set()
    for colour in ("red", "blue"):
        file = tmp_path / colour / "rows.jsonl"
        file.parent.mkdir()
        (file.parent / "it.png").write_bytes(encoded(picture(colour)))  # type: ignore[arg-type]
        file.write_text(json.dumps(row_of("it.png")) + "\n")
        data = pipeline(file, tokens, accept_small_data=True)
        data.prepare()
        prints.add(data.fingerprint)
    assert len(prints) == 2


def test_paths_of_pictures_are_relative_to_the_file_that_names_them(
    tokens: PictureTokens, tmp_path: Path
) -> None:
    for number, folder in enumerate("ab"):
        rows = tmp_path / "rows" / folder / "rows.jsonl"
        rows.parent.mkdir(parents=True)
        (rows.parent / "it.png").write_bytes(encoded(picture("red", number)))
        rows.write_text(json.dumps(row_of("it.png")) + "\n")
    data = pipeline(tmp_path / "rows", tokens)
    assert data.prepare().num_train == 2
    shown = [example.pictures[0].read() for example in data.examples(range(2))]
    assert shown == [encoded(picture("red", number)) for number in range(2)]


TEXT_ONLY = r"data\.setting_without_image_support"


@pytest.mark.parametrize(
    ("row", "settings", "sentence"),
    [
        (row_of("red.png"), {"streaming": True}, rf"{TEXT_ONLY}\(key=data\.streaming,"),
        (row_of("red.png"), {"augmentation": "cut"}, rf"{TEXT_ONLY}\(key=data\.augmentation,"),
        (row_of("red.png"), {"image_column": "imag"}, r"data\.image_column.*\(meant=image\)"),
        ({"image": "red.png", "text": "a cat"}, {}, "data.images_without_prompt"),
    ],
)
def test_what_cannot_be_done_with_pictures_is_refused(
    row: dict[str, object],
    settings: dict[str, Any],
    sentence: str,
    tokens: PictureTokens,
    tmp_path: Path,
) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with AUGMENTATIONS.registered("cut", lambda conversation, _: conversation):
        data = pipeline(file, tokens, **settings)
        with pytest.raises(ValueError, match=sentence):
            data.prepare()


def test_a_column_of_pictures_can_be_left_out_or_named(
    tokens: PictureTokens, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    file = tmp_path / "rows.jsonl"
    row = {"photo": "red.png", "question": "?", "answer": "red"}
    file.write_text(json.dumps(row) + "\n")
    for column, number in (("auto", 0), ("none", 0), ("photo", 1)):
        data = pipeline(file, tokens, image_column=column)
        data.prepare()
        (batch,) = list(data.train_batches(0, 0, 1))
        assert len(batch[0].pictures) == number
    text_only = pipeline(file, None, image_column="photo")
    with pytest.raises(ValueError, match=r"data\.images_need_vision_model"):
        text_only.prepare()


DATA_URL = "data:image/png;base64,AQID"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc", b"abc"),
        (DATA_URL, b"\1\2\3"),
        ("data:image/png;charset=x;BASE64,AQID", b"\1\2\3"),
        ("data:;base64,AQ\nID", b"\1\2\3"),
        ("file:///a/b.png", "/a/b.png"),
        ("FILE://b.png", "b.png"),
        ("AQID" * 16, b"\1\2\3" * 16),
        ("AQID" * 15, "AQID" * 15),  # too short to be told from a path
        ("A" * 64 + "/b.png", "A" * 64 + "/b.png"),
        ({"bytes": None, "path": "b.png"}, "b.png"),
        ({"bytes": b"", "path": "b.png"}, b""),
        ({"path": "b.png", "bytes": b"a", "image": None}, b"a"),
        ({"url": "b.png", "path": "c.png"}, "c.png"),
    ],
)
def test_the_source_of_a_picture_is_its_bytes_or_its_path(value: object, expected: object) -> None:
    assert picture_source(value, "it") == expected


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ({"path": None}, "image_without_source(place=it)"),
        ({"image": {"url": 3}}, "value_not_an_image(place=it, kind=a number)"),
        (" ", "image_source_empty(place=it)"),
        ("data:text/plain,x", "data_url_not_base64(place=it)"),
        ("data:,x", "data_url_not_base64(place=it)"),
        ("https://x.org/a.png", "image_is_url(place=it)"),
        ("S3://x/a.png", "image_is_url(place=it)"),
        ("data:;base64,AQI", "image_not_base64(place=it, reason=Incorrect padding)"),
        ("data:;base64,A*ID", "image_not_base64(place=it, reason=Only base64 data is allowed)"),
        ("gone.png", "image_not_found(name=gone.png, file={0}/gone.png)"),
        ("red\0.png", "image_not_found(name=red\0.png, file={0}/red\0.png)"),
        (
            "text.png",
            "unsupported_image_format(image=data.image_named(name='text.png'), "
            "formats=BMP, GIF, JPEG, PNG, TIFF, WEBP)",
        ),
        (b"text", "unsupported_image_format(image=data.image_unnamed(), formats=BMP, GIF, JPEG, "),
        (RED[:-40], "image_corrupt(image=data.image_unnamed(), reason=image file is truncated"),
        (
            png_header(90_000, 90_000),
            "image_too_large_to_decode(image=data.image_unnamed(), max_megapixels=64)",
        ),
        (
            png_header(8_001, 8_000),
            "image_has_too_many_pixels(image=data.image_unnamed(), width=8001, height=8000, "
            "max_megapixels=64)",
        ),
    ],
)
def test_a_picture_that_cannot_be_used_is_named_with_the_reason(
    value: object, refusal: str, tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("red")
    with pytest.raises(PictureError) as raised:
        read_picture(picture_source(value, "it"), tmp_path)
    assert str(raised.value).startswith(f"data.{refusal.format(tmp_path)}")


def test_a_picture_knows_its_place_and_bytes_in_memory_are_kept(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    by_path, _ = read_picture("red.png", tmp_path)
    by_bytes, _ = read_picture(RED, tmp_path)
    assert (by_path.path, by_bytes.path) == (str(tmp_path / "red.png"), "")
    assert by_path.sha256 == by_bytes.sha256
    assert by_path.read() == by_bytes.read() == RED
    assert by_path != by_bytes


TOO_LARGE = r"data\.image_file_too_large.*max_mib=0", r"data\.encoded_image_too_large.*max_mib=0"
TOO_MANY_PIXELS = (r"data\.image_has_too_many_pixels.*max_megapixels=0",) * 2


def test_the_bounds_on_bytes_and_pixels_are_inclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    width, height = picture("red").size
    for bytes_allowed, pixels_allowed, is_read in (
        (len(RED), width * height, True),
        (len(RED) - 1, width * height, False),
        (len(RED), width * height - 1, False),
    ):
        monkeypatch.setattr(pictures, "MAX_PICTURE_BYTES", bytes_allowed)
        monkeypatch.setattr(pictures, "MAX_PIXELS", pixels_allowed)
        of_file, of_bytes = TOO_LARGE if bytes_allowed < len(RED) else TOO_MANY_PIXELS
        for source, refusal in (("red.png", of_file), (RED, of_bytes)):
            if is_read:
                assert read_picture(source, tmp_path)[1].size == (width, height)
            else:
                with pytest.raises(PictureError, match=refusal):
                    read_picture(source, tmp_path)
    assert MAX_PICTURE_BYTES == 64 * 2**20


@pytest.mark.parametrize(
    ("dtype", "values", "packing", "is_inverted", "expected"),
    [
        ("uint16", [0, 255, 256, 0x1234, 65535], "I;16", False, [0, 0, 1, 0x12, 255]),
        ("uint16", [0, 256, 65535], "I;16", True, [255, 254, 0]),
        ("uint16", [0, 15, 16, 4095], "I;12", False, [0, 0, 1, 255]),
        ("float32", [0, 0.25, 0.5, 1], "F;32F", False, [0, 64, 128, 255]),
        ("float32", [0, 1], "F;32F", True, [255, 0]),
    ],
)
def test_deep_grey_is_scaled_by_its_range(
    dtype: str, values: list[float], packing: str, is_inverted: bool, expected: list[int]
) -> None:
    grey = pictures._grey(np.array([values], dtype), packing, is_inverted, "it")
    assert list(np.asarray(grey)[0]) == expected


@pytest.mark.parametrize("values", [[-0.5, 1], [0, 1.5], [0, float("nan")]])
def test_numbers_of_an_unknown_range_are_refused(values: list[float]) -> None:
    least, most = (float("nan"),) * 2 if values[1] != values[1] else (values[0], values[1])
    unknown = rf"image_range_unknown\(image=it, smallest={float(least)}, largest={float(most)}\)"
    with pytest.raises(PictureError, match=unknown):
        pictures._grey(np.array([values], "float32"), "F;32F", False, "it")


@pytest.mark.parametrize(
    ("packing", "is_deep"),
    [("RGB;16B", True), ("L;16B", True), ("I;12", True), ("RGB", False), ("XRGB;16", False)],
)
def test_deep_colours_are_known_by_how_a_file_packs_them(packing: str, is_deep: bool) -> None:
    _, decided = pictures._in_rgb(Image.new("RGB", (2, 3)), packing, False, "white", "it")
    assert decided == [MANY_BITS] * is_deep


def test_only_pixels_that_are_not_opaque_are_laid_on_the_background() -> None:
    image = Image.new("RGBA", (3, 1), (10, 20, 30, 255))
    opaque, decided = pictures._in_rgb(image, "RGBA", False, "blue", "it")
    assert (list(opaque.get_flattened_data()), decided) == ([(10, 20, 30)] * 3, [])
    image.putpixel((1, 0), (10, 20, 30, 0))
    laid, decided = pictures._in_rgb(image, "RGBA", False, "blue", "it")
    assert list(laid.get_flattened_data()) == [(10, 20, 30), (0, 0, 255), (10, 20, 30)]
    assert decided == [TRANSPARENT]


@pytest.mark.parametrize(
    ("counts", "what", "expected"),
    [
        ({}, "row", []),
        ({TRANSPARENT: 0}, "row", []),
        (
            {MANY_BITS: 1, TRANSPARENT: 1200},
            "row",
            [
                "1,200 rows data.image_transparency_removed(background=red)",
                "1 row data.image_depth_reduced()",
            ],
        ),
        ({SEVERAL_FRAMES: 2}, "picture", ["2 pictures data.image_first_frame_used()"]),
    ],
)
def test_what_was_decided_is_counted(
    counts: dict[str, int], what: str, expected: list[str]
) -> None:
    lines = decisions_in_words(Counter(counts), "red", what)
    assert len(lines) == bool(expected)
    assert lines == [f"data.image_decisions(decisions={expected})"] * bool(expected)


def deep_png(pixels: list[tuple[int, int, int]], transparent: tuple[int, int, int]) -> bytes:
    """A PNG of 16 bits a color, of which one is transparent; Pillow reads it, and writes none."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    row = b"\0" + b"".join(struct.pack(">3H", *pixel) for pixel in pixels)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", len(pixels), 1, 16, 2, 0, 0, 0))]
    parts += [(b"tRNS", struct.pack(">3H", *transparent)), (b"IDAT", zlib.compress(row))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in [*parts, (b"IEND", b"")])


def pixels_of(content: bytes, background: str = "blue") -> tuple[list[Any], tuple[str, ...]]:
    image, decided = pictures._decoded_picture(content, "it", background)
    return list(image.get_flattened_data()), decided


BLUE = (0, 0, 255)


def test_the_transparent_color_of_a_deep_picture_is_laid_on_the_background() -> None:
    seen = (0x1234, 0x5678, 0x9ABC)
    pixels, decided = pixels_of(deep_png([seen, (0x4000, 0x4000, 0x4000)], seen))
    assert pixels == [BLUE, (0x40, 0x40, 0x40)]
    assert decided == (MANY_BITS, TRANSPARENT)
    pixels, decided = pixels_of(deep_png([seen, (0x4000, 0x4000, 0x4000)], (1, 2, 3)))
    assert pixels == [(0x12, 0x56, 0x9A), (0x40, 0x40, 0x40)]
    assert decided == (MANY_BITS,)


def test_the_transparent_grey_of_a_deep_picture_is_one_of_all_its_values() -> None:
    grey = np.array([[0x1234, 0x1235, 0xFFFF]], np.uint16)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG", transparency=0x1234)
    pixels, decided = pixels_of(file.getvalue())
    assert pixels == [BLUE, (0x12,) * 3, (255,) * 3]
    assert decided == (MANY_BITS, TRANSPARENT)


@pytest.mark.parametrize(
    ("mode", "color", "rgb", "decided"),
    [
        ("RGB", (10, 20, 30), (10, 20, 30), ()),
        ("L", 7, (7, 7, 7), ()),
        ("1", 255, (255, 255, 255), ()),
        ("P", 0, None, ()),
        ("LA", (9, 255), (9, 9, 9), ()),
        ("LA", (9, 0), BLUE, (TRANSPARENT,)),
        ("RGBA", (10, 20, 30, 0), BLUE, (TRANSPARENT,)),
        ("CMYK", (0, 0, 0, 255), (0, 0, 0), ()),
    ],
)
def test_a_picture_of_any_mode_is_read_in_rgb(
    mode: str, color: Any, rgb: Any, decided: tuple[str, ...]
) -> None:
    file = io.BytesIO()
    Image.new(mode, (2, 1), color).save(file, "TIFF")
    image, found = pictures._decoded_picture(file.getvalue(), "it", "blue")
    assert (image.mode, found) == ("RGB", decided)
    if rgb is not None:
        assert list(image.get_flattened_data()) == [rgb] * 2


@pytest.mark.parametrize(
    ("mode", "values"),
    [("I", "data.integers_of_unknown_range()"), ("LAB", "data.lab_colors()")],
)
def test_values_without_a_known_range_are_refused_with_their_name(mode: str, values: str) -> None:
    file = io.BytesIO()
    Image.new(mode, (2, 2)).save(file, "TIFF")
    for name, image in (("it", "data.image_named(name=it)"), ("", "data.image_unnamed()")):
        with pytest.raises(PictureError) as raised:
            decode(file.getvalue(), name)
        assert str(raised.value) == f"data.unsupported_image_values(image={image}, values={values})"


def test_white_may_be_the_smallest_value() -> None:
    file = io.BytesIO()
    Image.fromarray(np.array([[0, 65535]], "uint16")).save(file, "TIFF", tiffinfo={262: 0})
    assert pixels_of(file.getvalue())[0] == [(255, 255, 255), (0, 0, 0)]


def test_of_several_frames_the_first_is_taken() -> None:
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "lime")]
    for kind, number in (("GIF", 2), ("WEBP", 2), ("GIF", 1), ("MPO", 2)):
        file = io.BytesIO()
        options = {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(file, kind, save_all=True, append_images=frames[1:number], **options)
        pixels, decided = pixels_of(file.getvalue())
        assert decided == ((SEVERAL_FRAMES,) if number > 1 and kind != "MPO" else ()), kind
        assert pixels[0][0] > 200 > 60 > pixels[0][1]


def test_an_image_without_read_permission_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "red.png").write_bytes(RED)

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    refusal = r"data\.image_unreadable\(name=red\.png, reason=.*Permission denied"
    with pytest.raises(PictureError, match=refusal):
        read_picture("red.png", tmp_path)
