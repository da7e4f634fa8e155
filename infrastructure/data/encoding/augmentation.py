"""Augmentation: a plug-in that changes a conversation each time the example is used.

The random numbers are a pure function of (seed, epoch, position), so a resumed run sees the same
changes. Augmented conversations are tokenized on the fly. If an augmented conversation cannot be
used (too long, no answer left), the unchanged one is used instead.
"""

from collections.abc import Callable

import numpy as np

from infrastructure.config import registries
from infrastructure.core.errors import InputError
from infrastructure.core.registry import Registry
from infrastructure.data.readers.rows import Conversation

Augmentation = Callable[[Conversation, np.random.RandomState], Conversation]

AUGMENTATIONS: Registry[Augmentation] = registries.AUGMENTATIONS


def register_augmentation(name: str, function: Augmentation) -> None:
    """Register an augmentation, for `data.augmentation=name`.

    An installed package can register one with an entry point in the group "temper.augmentations".

    Args:
        function: returns a changed conversation; takes all random numbers from the generator that
            it is given.

    Raises:
        ValueError: the name is taken.
    """
    AUGMENTATIONS.register(name, function)


def get_augmentation(name: str) -> Augmentation:
    """Return the augmentation with this name.

    Raises:
        ValueError: there is no augmentation with this name; the message suggests the nearest name.
    """
    try:
        return AUGMENTATIONS.get(name)
    except ValueError as error:
        raise InputError("data.unknown_augmentation", reason=error) from error
