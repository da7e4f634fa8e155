"""Changes that features make to a model while `ModelManager` loads it, and when it is saved.

The feature's attribute `model_change` is the address of the function that returns the change.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.features import all_of
from infrastructure.core.json_text import JsonObject
from infrastructure.models.saved_model import ModelSource

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from infrastructure.models.transformers_backend import LoadOptions


class Rounding(NamedTuple):
    """The rounding with which a model computes.

    Attributes:
        kind: its name. The rounded weights are saved in a folder of their own, `final-KIND`.
        bits: bits of a weight. An export in so many bits has the rounded weights.
        package: the package that such an export needs.
    """

    kind: str
    bits: int
    package: str


class ModelChange:
    """A change to one model. By default, its methods change nothing.

    Attributes:
        makes_processor: whether the change makes a vision-language model of a text model, with the
            processor that `processor` returns.
        trains_in_full: names of modules that are trained in full next to a LoRA.
        notes: what `apply` tells the user.
        rounding: the rounding of the weights in the forward pass; None: there is none.
    """

    makes_processor = False
    trains_in_full: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rounding: Rounding | None = None

    def check_source(self, source: ModelSource, name: str) -> None:
        """Check where the model, as the configuration names it, comes from, before it is read.

        Raises:
            ValueError: a model of this kind cannot be changed.
        """

    def check_base(self, base: ModelSource, options: "LoadOptions", name: str) -> None:
        """Check the model's configuration file.

        Raises:
            ValueError: the model cannot be changed.
        """

    def check_layers(self, layers: "torch.nn.Module") -> None:
        """Check the model's layers, on the meta device, before its weights are read.

        Raises:
            ValueError: the layers cannot be changed.
        """

    def before_building(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Change the tokenizer for which a new model is about to be built."""

    def processor(self, base: ModelSource, options: "LoadOptions") -> Any:
        """Return the processor of the changed model, if `makes_processor` is True."""
        raise NotImplementedError

    def apply(
        self,
        model: "torch.nn.Module",
        tokenizer: "PreTrainedTokenizerBase",
        options: "LoadOptions",
        *,
        may_grow: bool,
    ) -> "torch.nn.Module":
        """Return the changed model. New weights are drawn from torch's random generator.

        Args:
            may_grow: whether the vocabulary may grow. False if the embedding weights are
                neither trained nor saved.

        Raises:
            ValueError: the model cannot be changed.
        """
        return model

    def facts(self) -> JsonObject:
        """Return what this change adds to the description of the model in run.json.

        "rounding" has the attributes of a `Rounding`. "second_base" has hashes of a second model
        whose weights the changed model has: `sha256` or `revision`, and `processor`.
        """
        return {} if self.rounding is None else {"rounding": self.rounding._asdict()}

    def template(self, template: str | None, processor: Any) -> str | None:
        """Return the chat template with which the changed model is saved."""
        return template

    def write_rounded(
        self, plain: Path, part: Path, tokenizer: "PreTrainedTokenizerBase | None"
    ) -> None:
        """Write the model saved in `plain` to the folder `part`, with rounded weights."""
        raise NotImplementedError


def changes_of(model: ModelConfig, training: TrainingConfig) -> list[ModelChange]:
    """Return the changes to the model that these settings make, new for each model."""
    sections = SimpleNamespace(model=model, training=training)
    made = (change(sections) for change in all_of("model_change"))
    return [change for change in made if change is not None]
