"""Router logits of a mixture of experts: training uses them to balance its experts.

`generate` fails with them. A model whose configuration asks for them (`output_router_logits`)
trains with them, and generates text and is saved without them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from infrastructure.models.model_inputs import inner_model

ROUTER_LOGITS = "output_router_logits"


def has_router_logits(model: torch.nn.Module) -> bool:
    """Return whether a model's configuration asks for router logits."""
    return any(getattr(config, ROUTER_LOGITS, False) for config in _configs(inner_model(model)))


def write_without_router_logits(model: torch.nn.Module) -> None:
    """Leave router logits out when `model` generates text. Training keeps them."""
    if has_router_logits(model):
        inner_model(model).register_forward_pre_hook(_left_out, with_kwargs=True)


def _left_out(
    _module: torch.nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Turn router logits off while text is generated.

    A call counts as generation if it uses a cache and no gradients. Training and evaluation have no
    cache.
    """
    if torch.is_grad_enabled() or not named.get("use_cache"):
        return None
    return arguments, {**named, ROUTER_LOGITS: False}


@contextmanager
def router_logits_off(model: torch.nn.Module) -> Iterator[None]:
    """Turn router logits off in the configuration of `model` inside the block."""
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
