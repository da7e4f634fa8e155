"""FLOPs of a run, and its model FLOPs utilization (MFU).

MFU is defined as in the PaLM paper (Chowdhery et al., 2022, appendix B): recomputed activations and
padding do not count. The device's peak speed is measured with a large matrix product in the
precision of the training, so it works on every device. It is slightly below the manufacturer's
figure.
"""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SIZE = {"cpu": 512, "cuda": 4096}  # of the square matrices
NUM_PRODUCTS = 5
MAX_SECONDS = 0.1  # no further product is begun after that long


@dataclass(frozen=True)
class FlopsEstimate:
    """FLOPs of training a model.

    Attributes:
        per_token: FLOPs per token, forward and backward, without attention.
        per_token_and_position: FLOPs of attention, per token and attended position.
    """

    per_token: float
    per_token_and_position: float

    def per_second(self, tokens_per_second: float, tokens_per_example: float) -> float:
        """Return the FLOPs per second at this speed and length of examples."""
        attention = self.per_token_and_position * tokens_per_example
        return tokens_per_second * (self.per_token + attention)


def arithmetic_of(model: torch.nn.Module) -> FlopsEstimate:
    """Return the FLOPs of training `model` with its currently trainable parameters.

    The forward pass takes two operations per weight. The backward pass takes two per weight for the
    gradient of the activations, and two per trained weight for its gradient. An embedding lookup
    takes no operations, unless the table is also the output layer. A token passes through only a
    few of the experts of a layer.
    """
    config = getattr(model, "config", None)
    weights = {id(p): (p, _share_used(name, p, config)) for name, p in model.named_parameters()}
    if (table := _lookup_table(model)) is not None:
        weights.pop(id(table), None)
    numbers = sum(share * num_weights(weight) for weight, share in weights.values())
    trained = sum(share * num_weights(w) for w, share in weights.values() if w.requires_grad)
    layers, width = (_size(config, n) for n in ("num_hidden_layers", "hidden_size"))
    return FlopsEstimate(4.0 * numbers + 2.0 * trained, 12.0 * layers * width)


def num_weights(tensor: torch.Tensor) -> int:
    """Return the number of weights in a parameter.

    bitsandbytes packs two 4-bit weights into a byte and stores the true shape separately.
    """
    quant_state = getattr(tensor, "quant_state", None)
    return math.prod(quant_state.shape) if quant_state is not None else tensor.numel()


def _share_used(name: str, weight: torch.Tensor, config: "PreTrainedConfig | None") -> float:
    """Return the share of a parameter that holds all experts, (experts, out, in), that one token
    uses.
    """
    chosen = _size(config, "num_experts_per_tok")
    if weight.ndim != 3 or ".experts." not in name or not chosen:
        return 1.0
    return min(1.0, chosen / len(weight))


def _lookup_table(model: torch.nn.Module) -> torch.Tensor | None:
    """Return the weights of the input embeddings if nothing else uses them."""

    def weight_of(getter: str) -> torch.Tensor | None:
        try:
            layer = getattr(model, getter)()
        except (AttributeError, NotImplementedError):
            return None
        weight = getattr(layer, "weight", None)
        return weight if isinstance(weight, torch.Tensor) else None

    table = weight_of("get_input_embeddings")
    return None if table is None or table is weight_of("get_output_embeddings") else table


def _size(config: "PreTrainedConfig | None", name: str) -> int:
    value = getattr(config, name, 0)
    return value if isinstance(value, int) else 0


@torch.no_grad()
def measure_operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOPs per second of a large matrix product, as the fastest of up to five trials.

    This takes a tenth of a second, and does not change the random state. A CPU that emulates bf16
    would take a second for five trials, so it makes only one after the warm-up.
    """
    size = SIZE.get(device.type, SIZE["cpu"])
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(size, generator=random).to(device, dtype)
    factor = (rows[:, None] * rows[None, :]).contiguous()
    _seconds_of_product(factor)  # warms up
    seconds = [_seconds_of_product(factor)]
    while len(seconds) < NUM_PRODUCTS and sum(seconds) < MAX_SECONDS:
        seconds.append(_seconds_of_product(factor))
    return 2.0 * size**3 / min(seconds)


def _seconds_of_product(factor: torch.Tensor) -> float:
    synchronize(factor.device)
    started = time.perf_counter()
    factor @ factor
    synchronize(factor.device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
