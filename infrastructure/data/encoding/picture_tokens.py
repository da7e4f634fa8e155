"""Conversion of images in a text to tokens by a transformers processor.

A chat template writes one placeholder per image (`<image>`, `<|image_pad|>`). The model's processor
determines how many tokens an image of a given size takes. These tokens replace the placeholder.
They are never trained on.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.data.readers.pictures import (
    RULE_VERSION,
    WHITE,
    PictureError,
    decode,
    read_picture,
)
from infrastructure.data.readers.rows import PictureSource
from infrastructure.data.store.examples import Picture

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

NUM_CHECKED = 3
KINDS_OF_TOKENS = ("mm_token_type_ids", "token_type_ids")  # 1 at an image's tokens
MOST_SIZES = 256  # of images, whose tokens are cached


class PictureTokens:
    """An encoder of images into tokens and pixels, using a model's processor.

    Args:
        processor: a transformers processor for images and text.
        name: name of the model, for messages.
        has_text_template: the chat template was made for text only, and may not support images.
        background: the color behind transparent pixels.

    Attributes:
        mark, mark_id: the placeholder token that a chat template writes for an image, and its ID.
        token_ids: the IDs of an image's tokens. For Gemma 3, the placeholder is not one of them.

    Raises:
        ValueError: the processor does not define which token stands for an image.
    """

    background = WHITE

    def __init__(
        self,
        processor: Any,
        name: str,
        *,
        has_text_template: bool = False,
        background: str = WHITE,
    ) -> None:
        self.processor = processor
        self.name = name
        self.background = background
        self.has_text_template = has_text_template
        mark = getattr(processor, "image_token", None)
        if not isinstance(mark, str):
            raise InputError(
                "data.processor_without_image_token", name=name, processor=type(processor).__name__
            )
        self.mark: str = mark
        self.mark_id = int(processor.tokenizer.convert_tokens_to_ids(self.mark))
        self.token_ids = _token_ids(processor) or [self.mark_id]
        self._ids: dict[tuple[int, int], list[int]] = {}
        self._num_checked = 0

    def settings(self) -> list[str]:
        """Return everything besides the tokenizer that determines the tokens of an image."""
        made_by = type(self.processor.image_processor).__name__
        rule = [str(RULE_VERSION), self.background]
        return [type(self.processor).__name__, made_by, self.processor.to_json_string(), *rule]

    def read(
        self, sources: Sequence[PictureSource], folder: Path
    ) -> tuple[list[Picture], list["Image"]]:
        """Return the images of a row and their pixels; raises `PictureError`."""
        read = [read_picture(source, folder, self.background) for source in sources]
        return [picture for picture, _ in read], [image for _, image in read]

    def ids_of(self, image: "Image") -> list[int]:
        """Return the tokens of an image, which depend only on its size.

        Raises:
            PictureError: the processor refuses the image.
        """
        if image.size not in self._ids:
            if len(self._ids) >= MOST_SIZES:
                self._ids.clear()
            self._ids[image.size] = self._written(self.mark, [image])
        return self._ids[image.size]

    def in_place(
        self, ids: Sequence[int], mask: np.ndarray, images: Sequence["Image"]
    ) -> tuple[list[int], np.ndarray]:
        """Return the tokens with each image placeholder replaced by the tokens of its image, and
        the mask.

        Args:
            mask: bool (len(ids),), True for trained tokens.

        Raises:
            PictureError: the numbers of placeholders and images differ.
        """
        places = [n for n, token in enumerate(ids) if token == self.mark_id]
        if len(places) != len(images):
            raise PictureError(
                "data.image_token_count_mismatch",
                num_tokens=len(places),
                mark=self.mark,
                num_images=len(images),
            )
        whole: list[int] = []
        masks, start = [], 0
        for place, image in zip(places, images, strict=True):
            inside = self.ids_of(image)
            whole += [*ids[start:place], *inside]
            masks += [mask[start:place], np.zeros(len(inside), dtype=bool)]
            start = place + 1
        return [*whole, *ids[start:]], np.concatenate([*masks, mask[start:]])

    def check(self, text: str, before: Sequence[int], after: Sequence[int], images: Any) -> None:
        """Check that the first rows get the same tokens as from the processor itself.

        Args:
            before: the tokens of the text, with one placeholder for each image.
            after: the same tokens, with each placeholder replaced by the tokens of its image.

        Raises:
            ValueError: they differ.
        """
        if self._num_checked >= NUM_CHECKED or not images:
            return
        self._num_checked += 1
        tokenizer = self.processor.tokenizer
        if tokenizer(text, add_special_tokens=False)["input_ids"] != list(before):
            return  # its answers are tokenized separately, or a lead was added
        if self._written(text, images) != list(after):
            raise InputError(
                "data.image_encoding_depends_on_text",
                name=self.name,
                processor=type(self.processor).__name__,
            )

    def _written(self, text: str, images: Sequence["Image"]) -> list[int]:
        try:
            written = self.processor(text=[text], images=[*images], add_special_tokens=False)
        except (ValueError, TypeError, IndexError, ZeroDivisionError, RuntimeError) as error:
            sizes = ", ".join(f"{image.width} x {image.height}" for image in images)
            reason = " ".join(str(error).split())
            raise PictureError(
                "data.processor_rejected_image", sizes=sizes, reason=reason
            ) from error
        return [int(token) for token in written["input_ids"][0]]

    def inputs(self, ids: "torch.Tensor", pictures: Sequence[Picture]) -> dict[str, Any]:
        """Return the model inputs besides tokens: pixels, and the positions of images if the model
        uses them.

        Args:
            ids: (B, L), with the tokens of the images in place.
            pictures: the images of all rows, in order.
        """
        given = self.pixels(pictures) if pictures else {}
        return given | self.kinds(ids)

    def kinds(self, ids: "torch.Tensor") -> dict[str, Any]:
        """Return a mask of the image tokens, as model arguments; {} if the model does not use such
        a mask.
        """
        names = set(self.processor.model_input_names)
        is_picture = (ids[..., None] == ids.new_tensor(self.token_ids)).any(-1).long()
        return {name: is_picture for name in KINDS_OF_TOKENS if name in names}

    def pixels(self, pictures: Sequence[Picture]) -> dict[str, Any]:
        """Return the model inputs for images, in order: tensors by argument name.

        Raises:
            DataError: an image has changed since the data was prepared.
        """
        return self.pixels_of(self.images(pictures))

    def images(self, pictures: Sequence[Picture]) -> list["Image"]:
        """Return the decoded images, in order.

        Raises:
            DataError: an image has changed since the data was prepared.
        """
        return [decode(picture.read(), background=self.background) for picture in pictures]

    def pixels_of(self, images: Sequence["Image"]) -> dict[str, Any]:
        """Return the model inputs for images that are already decoded: tensors by argument name."""
        made = self.processor.image_processor([*images], return_tensors="pt")
        names = self.processor.image_processor.model_input_names
        unused = getattr(self.processor, "unused_input_names", ())  # by a model's forward
        return {name: made[name] for name in names if name in made and name not in unused}


def _token_ids(processor: Any) -> list[int]:
    """Return the IDs that a processor declares as image tokens; empty if it declares none."""
    unknown = processor.tokenizer.unk_token_id
    known = getattr(processor, "image_token_ids", None) or []
    return [int(number) for number in known if number is not None and number != unknown]
