"""Handling of a mixture of experts' router logits, which training uses to balance experts.

`generate` fails if a model outputs router logits. If a model's configuration turns them on
(`output_router_logits`), they are used only in training, but not for generating text, and not in
the saved model.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from infrastructure.models.model_inputs import inner_model

ROUTER_LOGITS = "output_router_logits"


def has_router_logits(model: torch.nn.Module) -> bool:
    """Return whether a model's configuration turns router logits on."""
    return any(getattr(config, ROUTER_LOGITS, False) for config in _configs(inner_model(model)))


def write_without_router_logits(model: torch.nn.Module) -> None:
    """Turn router logits off whenever `model` generates text, but not in training."""
    if has_router_logits(model):
        inner_model(model).register_forward_pre_hook(_left_out, with_kwargs=True)


def _left_out(
    _module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Turn router logits off in a forward call that is part of text generation.

    A call counts as generation if it uses a cache and no gradients. Training and evaluation have no
    cache.
    """
    if torch.is_grad_enabled() or not named.get("use_cache"):
        return None
    return arguments, {**named, ROUTER_LOGITS: False}


@contextmanager
def router_logits_off(model: torch.nn.Module) -> Iterator[None]:
    """Turn router logits off in the configuration of `model` while the context lasts."""
    configs_with = [
        config for config in _configs(inner_model(model)) if getattr(config, ROUTER_LOGITS, False)
    ]
    for config in configs_with:
        setattr(config, ROUTER_LOGITS, False)
    try:
        yield
    finally:
        for config in configs_with:
            setattr(config, ROUTER_LOGITS, True)


def _configs(model: torch.nn.Module) -> list[Any]:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        return []
    text = config.get_text_config()
    return [config] if text is config else [config, text]
