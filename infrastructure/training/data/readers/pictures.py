"""Pictures of rows: where their bytes are, and the pixels that they decode to, within bounds.

A picture is given as a path (relative to the data file), as bytes, as base64 text or a data URL, or
as `datasets` writes it, {"bytes": ..., "path": ...}. It is decoded whole once, while the data is
prepared: a broken, a missing and a huge one are found then, with file and line.
"""

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.core.optional import require
from infrastructure.training.data.readers.rows import PictureSource, kind_of
from infrastructure.training.data.store.examples import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PICTURE_BYTES = 64 << 20
MAX_PIXELS = 64_000_000  # 192 MB once it is decoded
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SOURCE_KEYS = ("image", "image_url", "source", "bytes", "base64", "data", "path", "url")
DATA_URL = re.compile(r"data:[^,;]*(;[^,]*)?,", re.IGNORECASE)
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")


class PictureError(Exception):
    """A picture cannot be used: says why."""


def looks_like_picture(value: object) -> bool:
    """Whether a column's value is a picture, or a list of pictures, by its looks alone."""
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
    """What a row gives as a picture: a path, or the encoded picture itself.

    Raises:
        PictureError: it is none.
    """
    if isinstance(value, Mapping):
        given = [value[key] for key in SOURCE_KEYS if value.get(key) is not None]
        if not given:
            raise PictureError(f"{where} has neither bytes nor a path")
        return picture_source(given[0], where)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PictureError(f"{where} is {kind_of(value)}, not a picture")
    if not value.strip():
        raise PictureError(f"{where} is empty")
    if url := DATA_URL.match(value):
        if not (url.group(1) or "").lower().endswith(";base64"):
            raise PictureError(f"{where} is a data URL that is not base64")
        return _decoded(value[url.end() :], where)
    if value.lower().startswith("file://"):
        return value[len("file://") :]
    if ADDRESS.match(value):
        raise PictureError(f"{where} is an address: download the pictures, and give their paths")
    is_path = value.strip().lower().endswith(ENDINGS)
    return _decoded(value, where) if not is_path and BASE64.fullmatch(value) else value


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"{where} is no base64: {error}") from error


def read_picture(source: PictureSource, folder: Path) -> tuple[Picture, "Image"]:
    """A picture of a row, and its pixels.

    Args:
        folder: what paths are relative to.

    Raises:
        PictureError: it is missing, broken, too large, or no picture.
    """
    if isinstance(source, bytes):
        content, path = source, ""
        if len(content) > MAX_PICTURE_BYTES:
            raise PictureError(f"a picture of more than {MAX_PICTURE_BYTES >> 20} MiB")
    else:
        file = (folder / source).absolute()
        content, path = _file_content(file, source), str(file)
    image = decode(content, path and f"{source!r}")
    kept = b"" if path else content
    return Picture(hashlib.sha256(content).hexdigest(), len(content), path, 0, kept), image


def _file_content(file: Path, name: str) -> bytes:
    try:
        if not file.is_file():
            raise PictureError(f"there is no picture {name!r} (looked for {file})")
        with file.open("rb") as opened:
            content = opened.read(MAX_PICTURE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PictureError(f"the picture {name!r} cannot be read ({error})") from error
    if len(content) > MAX_PICTURE_BYTES:
        raise PictureError(f"the picture {name!r} has more than {MAX_PICTURE_BYTES >> 20} MiB")
    return content


def decode(content: bytes, name: str = "") -> "Image":
    """The pixels, in RGB and upright; of one that moves the first frame.

    Raises:
        PictureError: it cannot be decoded, or has too many pixels.
    """
    module = require("PIL.Image", "training on pictures")
    operations = require("PIL.ImageOps", "training on pictures")
    what = f"the picture {name}" if name else "the picture"
    try:
        with module.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise PictureError(
                    f"{what} has {width} x {height} pixels, more than {MAX_PIXELS // 10**6} million"
                )
            upright: Image = operations.exif_transpose(image).convert("RGB")
            return upright
    except PictureError:
        raise
    except module.UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise PictureError(f"{what} is none of {known}") from error
    except (module.DecompressionBombError, module.DecompressionBombWarning) as error:
        raise PictureError(f"{what} has more pixels than {MAX_PIXELS // 10**6} million") from error
    except Exception as error:  # its decoders raise whatever a broken file makes them
        raise PictureError(f"{what} is broken ({error})") from error
