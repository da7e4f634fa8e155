"""The base class for fields that features add to the training section.

The properties of this class tell the core what it needs to know about a feature.
"""

from typing import ClassVar

from infrastructure.config.base import ConfigSection


class TrainingFields(ConfigSection):
    """A feature's fields in the training section.

    By default, the properties say that the feature needs nothing special.

    Attributes:
        measured: the names of fields that also affect the evaluation of a model.
    """

    prefix: ClassVar[str] = "training"
    measured: ClassVar[tuple[str, ...]] = ()

    @property
    def needed_strategy(self) -> str | None:
        """The strategy that these fields require if none is set; None if any strategy works."""
        return None

    @property
    def hides_tokens(self) -> bool:
        """True if the model learns to predict hidden tokens, with bidirectional attention."""
        return False

    @property
    def holds_half_weights(self) -> bool:
        """True if trainable weights are stored in 16 bits."""
        return False

    @property
    def names_examples(self) -> bool:
        """True if batches must contain example ids, because a value is kept for each example."""
        return False
