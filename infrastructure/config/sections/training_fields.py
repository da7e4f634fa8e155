"""The base of the fields that features add to the training section, and what the core asks them."""

from typing import ClassVar

from infrastructure.config.base import ConfigSection


class TrainingFields(ConfigSection):
    """Fields of a feature in the training section. The answers are those of plain training.

    Attributes:
        measured: the fields that have an effect on a measurement of a model, too.
    """

    prefix: ClassVar[str] = "training"
    measured: ClassVar[tuple[str, ...]] = ()

    @property
    def needed_strategy(self) -> str | None:
        """The strategy that the fields need if none is given, or None if they work with any."""
        return None

    @property
    def hides_tokens(self) -> bool:
        """True if the model learns tokens that are hidden from it, and attends to both sides."""
        return False

    @property
    def holds_half_weights(self) -> bool:
        """True if weights that train are held in 16 bits."""
        return False

    @property
    def names_examples(self) -> bool:
        """True if a batch names its examples, because something is kept for each of them."""
        return False
