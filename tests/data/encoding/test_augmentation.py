"""A registered augmentation is found by its name; another name is refused with the nearest one."""

import numpy as np
import pytest

from infrastructure.core.errors import InputError
from infrastructure.data.encoding.augmentation import (
    AUGMENTATIONS,
    get_augmentation,
    register_augmentation,
)
from infrastructure.data.readers.rows import Conversation


def same(conversation: Conversation, generator: np.random.RandomState) -> Conversation:
    return conversation


def test_a_name_gives_its_function_and_a_slip_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AUGMENTATIONS, "_registered", {})
    register_augmentation("mirror_letters", same)
    assert get_augmentation("mirror_letters") is same
    with pytest.raises(InputError, match=r"^data\.unknown_augmentation\(reason=.*") as caught:
        get_augmentation("miror_letters")
    assert "name=miror_letters" in str(caught.value)
    assert "meant=mirror_letters" in str(caught.value)
