"""The images of rows: finding their bytes, and decoding them to pixels within size limits.

An image is given as a path (relative to the data file), as bytes, as base64 text or a data URL, or
in the form that `datasets` writes, {"bytes": ..., "path": ...}. It is decoded completely once, when
the data is prepared: a broken, missing or huge image is reported then, with file and line.
"""

import base64
import binascii
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infrastructure.core.errors import Problem
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.readers.rows import PictureSource, kind_of
from infrastructure.data.store.examples import Picture

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL.Image import Image

MAX_PICTURE_BYTES = 64 << 20
MAX_PIXELS = 64_000_000  # 192 MB when decoded
RULE_VERSION = 1  # of the conversion to pixels; data prepared with another version is not used
WHITE, OPAQUE = "white", 255
# Decisions about images that are not 8-bit RGB; reported with counts.
TRANSPARENT, SEVERAL_FRAMES, MANY_BITS = "transparent", "several frames", "more than 8 bits"
DEEP = re.compile(r"\b(?:L|LA|RGB|RGBA|RGBa|RGBX|RGBXX|CMYK|I|F);(?:16|12)")
TWELVE_BITS = "I;12"
PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}
UNKNOWN_RANGE = {"I": "data.integers_of_unknown_range", "LAB": "data.lab_colors"}
TIFF_PHOTOMETRIC, TIFF_WHITE_IS_ZERO = 262, 0
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SOURCE_KEYS = ("image", "image_url", "source", "bytes", "base64", "data", "path", "url")
DATA_URL = re.compile(r"data:[^,;]*(;[^,]*)?,", re.IGNORECASE)
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")


class PictureError(Problem):
    """An error for an image that cannot be used; the message gives the reason."""


def looks_like_picture(value: object) -> bool:
    """Return whether a value looks like an image or a list of images, without decoding it."""
    if isinstance(value, list):
        return bool(value) and all(map(looks_like_picture, value))
    if isinstance(value, bytes):
        return True
    if isinstance(value, Mapping):
        return bool({"bytes", "path", "url"} & value.keys())
    if not isinstance(value, str):
        return False
    ends = value.strip().lower().partition("?")[0].endswith(ENDINGS)
    return ends or DATA_URL.match(value) is not None or BASE64.fullmatch(value) is not None


def picture_source(value: object, where: str) -> PictureSource:
    """Return the source of an image given as a row's value: a path, or the encoded bytes.

    Raises:
        PictureError: the value is not an image.
    """
    if isinstance(value, Mapping):
        given = [value[key] for key in SOURCE_KEYS if value.get(key) is not None]
        if not given:
            raise PictureError("data.image_without_source", place=where)
        return picture_source(given[0], where)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PictureError("data.value_not_an_image", place=where, kind=kind_of(value))
    if not value.strip():
        raise PictureError("data.image_source_empty", place=where)
    if url := DATA_URL.match(value):
        if not (url.group(1) or "").lower().endswith(";base64"):
            raise PictureError("data.data_url_not_base64", place=where)
        return _decoded(value[url.end() :], where)
    if value.lower().startswith("file://"):
        return value[len("file://") :]
    if ADDRESS.match(value):
        raise PictureError("data.image_is_url", place=where)
    is_path = value.strip().lower().endswith(ENDINGS)
    return _decoded(value, where) if not is_path and BASE64.fullmatch(value) else value


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError("data.image_not_base64", place=where, reason=error) from error


def read_picture(
    source: PictureSource, folder: Path, background: str = WHITE
) -> tuple[Picture, "Image"]:
    """Read and decode an image; return its record and its pixels.

    Args:
        folder: the folder that paths are relative to.
        background: the color behind transparent pixels.

    Raises:
        PictureError: the file is missing, damaged, too large, or not an image.
    """
    if isinstance(source, bytes):
        content, path = source, ""
        if len(content) > MAX_PICTURE_BYTES:
            raise PictureError("data.encoded_image_too_large", max_mib=MAX_PICTURE_BYTES >> 20)
    else:
        file = (folder / source).absolute()
        content, path = _file_content(file, source), str(file)
    image, decided = _decoded_picture(content, path and f"{source!r}", background)
    kept, sha256 = b"" if path else content, hashlib.sha256(content).hexdigest()
    return Picture(sha256, len(content), path, 0, kept, decided), image


def _file_content(file: Path, name: str) -> bytes:
    try:
        if not file.is_file():
            raise PictureError("data.image_not_found", name=name, file=file)
        with file.open("rb") as opened:
            content = opened.read(MAX_PICTURE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PictureError("data.image_unreadable", name=name, reason=error) from error
    if len(content) > MAX_PICTURE_BYTES:
        raise PictureError("data.image_file_too_large", name=name, max_mib=MAX_PICTURE_BYTES >> 20)
    return content


def decode(content: bytes, name: str = "", background: str = WHITE) -> "Image":
    """Return an encoded image's pixels as upright 8-bit RGB.

    Raises:
        PictureError: the image cannot be decoded, has too many pixels, or has values of unknown
            range.
    """
    return _decoded_picture(content, name, background)[0]


def _decoded_picture(content: bytes, name: str, background: str) -> "tuple[Image, tuple[str, ...]]":
    """Return an image's pixels as upright 8-bit RGB, and codes of the conversions that this
    required.

    The first of several frames is used, transparent pixels are composited onto `background`, and
    values of more than 8 bits are scaled by the range of their type.

    Raises:
        PictureError: it cannot be decoded, has too many pixels, or has values of unknown range.
    """
    module = require("PIL.Image", "data.decode_images")
    operations = require("PIL.ImageOps", "data.decode_images")
    what = phrase("data.image_named", name=name) if name else phrase("data.image_unnamed")
    try:
        with module.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise PictureError(
                    "data.image_has_too_many_pixels",
                    image=what,
                    width=width,
                    height=height,
                    max_megapixels=MAX_PIXELS // 10**6,
                )
            packing = _packing(image)
            is_inverted = _is_inverted(image)
            upright: Image = operations.exif_transpose(image)
            pixels, decided = _in_rgb(upright, packing, is_inverted, background, what)
            return pixels, (*decided, *_about_frames(image))
    except PictureError:
        raise
    except module.UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise PictureError("data.unsupported_image_format", image=what, formats=known) from error
    except (module.DecompressionBombError, module.DecompressionBombWarning) as error:
        raise PictureError(
            "data.image_too_large_to_decode", image=what, max_megapixels=MAX_PIXELS // 10**6
        ) from error
    except Exception as error:  # a broken file makes Pillow's decoders raise anything
        raise PictureError("data.image_corrupt", image=what, reason=error) from error


def _packing(image: "Image") -> str:
    """Return the file's pixel format in Pillow's notation (`RGB;16B`, `I;12`).

    Call this before the image is loaded, because Pillow then loses the information.
    """
    return " ".join(str(tile[3]) for tile in getattr(image, "tile", ())[:1])


def _is_inverted(image: "Image") -> bool:
    """Return whether the smallest value means white. Pillow handles this only for 8-bit images."""
    tags = getattr(image, "tag_v2", None)
    return tags is not None and tags.get(TIFF_PHOTOMETRIC) == TIFF_WHITE_IS_ZERO


def _in_rgb(
    image: "Image", packing: str, is_inverted: bool, background: str, what: str
) -> "tuple[Image, list[str]]":
    """Return the pixels in RGB, and codes of the conversions that this required."""
    decided = [MANY_BITS] if DEEP.search(packing) else []
    transparent = image.info.get("transparency")
    if image.mode in UNKNOWN_RANGE:
        raise PictureError(
            "data.unsupported_image_values", image=what, values=phrase(UNKNOWN_RANGE[image.mode])
        )
    if image.mode == "F" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        image = _grey(values, packing, is_inverted, what)
        decided = [MANY_BITS]
        if isinstance(transparent, int):
            image.putalpha(_as_mask(values != transparent))
    elif decided and isinstance(transparent, tuple):  # 16 bits each; the pixels keep 8
        image.info["transparency"] = tuple(value >> 8 for value in transparent)
    if image.mode in PREMULTIPLIED:
        image = image.convert(PREMULTIPLIED[image.mode])
    if not image.has_transparency_data:
        return image.convert("RGB"), decided
    seen = image.convert("RGBA")
    if seen.getchannel("A").getextrema()[0] == OPAQUE:
        return image.convert("RGB"), decided
    module = require("PIL.Image", "data.decode_images")
    below = module.new("RGBA", seen.size, background)
    return module.alpha_composite(below, seen).convert("RGB"), [*decided, TRANSPARENT]


def _grey(values: "npt.NDArray[Any]", packing: str, is_inverted: bool, what: str) -> "Image":
    """Convert grey values of more than 8 bits to an 8-bit image.

    Integers are scaled by the range of their type; floats must be from 0 to 1.

    Raises:
        PictureError: the values are floats that are not all between 0 and 1.
    """
    module = require("PIL.Image", "data.decode_images")
    if values.dtype.kind == "f":
        if not (values.min() >= 0 and values.max() <= 1):  # also false for NaN
            raise PictureError(
                "data.image_range_unknown", image=what, smallest=values.min(), largest=values.max()
            )
        scaled = np.rint(values * 255)
    else:
        scaled = values >> (4 if TWELVE_BITS in packing else 8)  # as Pillow does for color
    eight = scaled.astype(np.uint8)
    image: Image = module.fromarray(255 - eight if is_inverted else eight)
    return image


def _as_mask(shown: "npt.NDArray[np.bool_]") -> "Image":
    module = require("PIL.Image", "data.decode_images")
    mask: Image = module.fromarray(shown.astype(np.uint8) * OPAQUE)
    return mask


def _about_frames(image: "Image") -> list[str]:
    """Return [SEVERAL_FRAMES] if an image has several frames, else [].

    The preview in an MPO photo does not count as a frame.
    """
    if image.format == "MPO":
        return []
    try:
        return [SEVERAL_FRAMES] if getattr(image, "n_frames", 1) > 1 else []
    except Exception:  # a later frame is broken; the first one is intact
        return [SEVERAL_FRAMES]


def decisions_in_words(counts: Counter[str], background: str, what: str = "row") -> list[str]:
    """Return a sentence on how images were converted, or [] if no image was.

    Args:
        counts: the number of rows or images for each conversion code.
        what: what was counted: "row" or "image".
    """
    words = {
        TRANSPARENT: phrase("data.image_transparency_removed", background=background),
        SEVERAL_FRAMES: phrase("data.image_first_frame_used"),
        MANY_BITS: phrase("data.image_depth_reduced"),
    }
    parts = [
        f"{n:,} {what}{'' if n == 1 else 's'} {words[kind]}"
        for kind in words
        if (n := counts[kind])
    ]
    return [phrase("data.image_decisions", decisions=parts)] if parts else []
