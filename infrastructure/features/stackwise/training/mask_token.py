"""The mask token that replaces a hidden token: the tokenizer's own, or an added one."""

from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.models.model_change import ModelChange
from infrastructure.models.saved_model import ModelSource, SourceKind
from infrastructure.models.vocabulary import add_row, has_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from infrastructure.models.transformers_backend import LoadOptions

MASK_TOKEN = "<|mask|>"


class AddedMaskToken(ModelChange):
    """The change that gives a model a mask token, if its tokenizer has none."""

    name = ""

    def check_source(self, source: ModelSource, name: str) -> None:
        if source.kind in (SourceKind.REGISTERED, SourceKind.REGISTERED_FOLDER):
            raise InputError("stackwise.masking_needs_text", name=name)
        self.name = name

    def before_building(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})

    def apply(
        self,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase",
        options: "LoadOptions",
        *,
        may_grow: bool,
    ) -> torch.nn.Module:
        is_new = tokenizer.mask_token_id is None
        self.before_building(tokenizer)
        grows = not has_row(model, tokenizer.mask_token_id)
        if grows and not may_grow:
            raise InputError("stackwise.mask_token_with_lora", name=self.name)
        add_row(model, tokenizer.mask_token_id)
        if is_new:
            self.notes = (_note(tokenizer, grows),)
        return model


def change(config: Any) -> AddedMaskToken | None:
    """Return the change to the model that training on masked tokens makes."""
    return AddedMaskToken() if config.training.time_step_masking else None


def _note(tokenizer: "PreTrainedTokenizerBase", grows: bool) -> str:
    where = "stackwise.vocabulary_extended" if grows else "stackwise.spare_embedding_row"
    return phrase(
        "stackwise.mask_token_added",
        mask_token=tokenizer.mask_token,
        token_id=tokenizer.mask_token_id,
        where=phrase(where),
    )
