"""Augmentation: a plug-in that changes a conversation each time it is seen.

Its randomness is a pure function of (seed, epoch, position), so a resumed training sees the same.
Augmented conversations are tokenised on the way; one that then cannot be used (too long, no answer
left) is replaced by the unchanged one, and counted.
"""

from collections.abc import Callable

import numpy as np

from infrastructure.config import registries
from infrastructure.core.errors import InputError
from infrastructure.core.registry import Registry
from infrastructure.training.data.readers.rows import Conversation

Augmentation = Callable[[Conversation, np.random.RandomState], Conversation]

AUGMENTATIONS: Registry[Augmentation] = registries.AUGMENTATIONS


def register_augmentation(name: str, function: Augmentation) -> None:
    """Teach Temper an augmentation, for `data.augmentation=name`.

    An installed package does the same with an entry point in the group "temper.augmentations".

    Args:
        function: gives a changed conversation; all its randomness comes from the generator.

    Raises:
        ValueError: the name is taken.
    """
    AUGMENTATIONS.register(name, function)


def unregister_augmentation(name: str) -> None:
    """Forget an augmentation that `register_augmentation` added."""
    AUGMENTATIONS.unregister(name)


def get_augmentation(name: str) -> Augmentation:
    """The augmentation of that name.

    Raises:
        ValueError: there is none; the text suggests the nearest one.
    """
    try:
        return AUGMENTATIONS.get(name)
    except ValueError as error:
        raise InputError("data.unknown_augmentation", reason=error) from error
