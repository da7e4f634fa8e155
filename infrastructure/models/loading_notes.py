"""What transformers does not say about a model that it loaded: stored weights that it left out,
and a head that is not tied to the embeddings although the configuration says so.
"""

import re
from collections.abc import Collection
from typing import Any

import torch

from infrastructure.core.messages import phrase

NOTES = "loading_notes"  # attribute of a loaded model
TIED = "tie_word_embeddings"


def notes_on_loading(
    model: torch.nn.Module, name: str, unexpected: Collection[str], stored: Collection[str]
) -> list[str]:
    """Return notes for the user on a model that was just loaded, and correct its configuration.

    Args:
        name: the name of the model.
        unexpected: the stored weights that the model does not have, according to transformers.
        stored: the name of each weight in the files, if they are known.
    """
    notes = []
    if unused := sorted({*unexpected, *_left_out(model, stored)}):
        notes.append(
            phrase("models.weights_not_used", name=name, count=len(unused), first=unused[0])
        )
    if _untie_config(model):
        notes.append(phrase("models.head_not_tied", name=name, setting=TIED))
    return notes


def _left_out(model: torch.nn.Module, stored: Collection[str]) -> set[str]:
    """Return the weights that transformers leaves out for every model of this class.

    Layers for predicting several tokens at once are an example. Weights whose names transformers
    converts are not counted: the model has a module of the same name.
    """
    ignored: Collection[str] = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    patterns = [re.compile(pattern) for pattern in ignored]
    candidates = {name for name in stored if any(p.search(name) for p in patterns)}
    modules = tuple({f".{_module(name)}" for name in model.state_dict()}) if candidates else ()
    return {
        name for name in candidates if not any(m.endswith(f".{_module(name)}") for m in modules)
    }


def _module(name: str) -> str:
    """Return the path of a weight's module: up to its first number, or its first two parts."""
    parts = name.split(".")
    end = next((n for n, part in enumerate(parts) if part.isdecimal()), 1)
    return ".".join(parts[: end + 1])


def _untie_config(model: Any) -> bool:
    """Correct a configuration that ties the head to the embeddings where the head has other
    weights; return whether it was corrected.

    transformers loads and saves such a head. A program that goes by the configuration would
    replace it by the embeddings.
    """
    if not hasattr(model, "get_output_embeddings"):
        return False
    head = getattr(model.get_output_embeddings(), "weight", None)
    embeddings = getattr(model.get_input_embeddings(), "weight", None)
    configs = {id(c): c for c in (model.config, model.config.get_text_config())}.values()
    tying = [config for config in configs if getattr(config, TIED, False)]
    if head is None or embeddings is None or head is embeddings or not tying:
        return False
    for config in tying:
        setattr(config, TIED, False)
    return True
