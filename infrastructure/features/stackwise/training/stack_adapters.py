"""Low-rank matrices that train in addition to the frozen weights of layers.

Methods: LoRA, arXiv 2106.09685; with quantized weights QLoRA, arXiv 2305.14314. The matrices are
modules inside each layer with names of their own, so the names of other parameters do not change,
even if the weights are quantized. All matrices exist from the start. Each pair has no effect at
first, and trains in the phases that name it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.hooks import RemovableHandle

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.quantized_trunk import (
    QuantizedLinear,
    is_conv1d,
)
from infrastructure.features.stackwise.training.stack_phases import (
    ADAPTERS,
    StackPlan,
    adapter_pairs,
)

SEPARATOR = "__"  # replaces the dots of a module's name, which a key must not contain
ITSELF = "__self__"  # the key of a layer that is itself linear, whose name in it is empty


class LowRankPair(torch.nn.Module):
    """A pair of low-rank matrices A and B that computes `scale * B A x`. B is zero at first.

    Args:
        num_in, num_out: sizes of the linear layer.
        rank, alpha: the scale is alpha / rank.
        dropout: share of the inputs that are dropped in training.
    """

    def __init__(self, num_in: int, num_out: int, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.lora_A = torch.nn.Parameter(torch.empty(rank, num_in))
        self.lora_B = torch.nn.Parameter(torch.zeros(num_out, rank))
        torch.nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scale, self.dropout = alpha / rank, dropout

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        dropped = F.dropout(inputs, self.dropout, self.training)
        low = F.linear(dropped.to(self.lora_A.dtype), self.lora_A)
        return F.linear(low, self.lora_B) * self.scale

    def update(self) -> torch.Tensor:
        """Return the pair's update of the weight (out, in)."""
        return self.scale * self.lora_B @ self.lora_A


ForwardHook = Callable[[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]


class LayerAdapters(torch.nn.ModuleDict):
    """The low-rank pairs of one layer: for each linear layer in it, a `ModuleDict` by pair key."""

    def named_pairs(self) -> Iterator[tuple[str, dict[str, LowRankPair]]]:
        """Yield the key and the pairs of each linear layer."""
        for key, module in self.items():
            pairs = module.named_children()
            yield key, {name: pair for name, pair in pairs if isinstance(pair, LowRankPair)}

    def hook(self, layer: torch.nn.Module) -> Iterator[RemovableHandle]:
        """Make the layer's linear modules add the output of their pairs; yield the hook handles."""
        for key, pairs in self.named_pairs():
            yield linear_of(layer, key).register_forward_hook(_adder(pairs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs unchanged. A `Sequential` layer calls this module, too."""
        return inputs


def linear_of(layer: torch.nn.Module, key: str) -> torch.nn.Module:
    """Return the linear module of a layer that belongs to a key of its `LayerAdapters`."""
    return layer if key == ITSELF else layer.get_submodule(key.replace(SEPARATOR, "."))


def adapted(
    linear: torch.nn.Module, weight: torch.Tensor, pairs: Mapping[str, LowRankPair]
) -> torch.Tensor:
    """Return the weight of a linear module with the updates of its low-rank pairs added."""
    is_transposed = linear.is_conv1d if isinstance(linear, QuantizedLinear) else is_conv1d(linear)
    for pair in pairs.values():
        update = pair.update().T if is_transposed else pair.update()
        weight = weight + update.to(weight.dtype)
    return weight


def _adder(pairs: Mapping[str, LowRankPair]) -> ForwardHook:
    def add(
        _module: torch.nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        for pair in pairs.values():
            output = output + pair(given[0]).to(output.dtype)
        return output

    return add


class StackAdapters:
    """The low-rank matrices of a model's layers.

    Args:
        layers: the layers of the model; they get the configured matrices here.
        seed: seed of the initial values.
    """

    def __init__(
        self, config: TrainingConfig, plan: StackPlan, layers: Iterable[torch.nn.Module], seed: int
    ) -> None:
        layers = list(layers)
        self._adapted: list[tuple[torch.nn.Module, LayerAdapters]] = []
        self._handles: list[RemovableHandle] = []
        keys_of = [(unit, adapter_pairs(config, plan, unit)) for unit in plan.units]
        with torch.random.fork_rng(devices=[]):
            if any(keys for _, keys in keys_of):  # it also seeds GPUs
                torch.manual_seed(seed)
            for unit, keys in keys_of:
                rank, alpha = rank_of(config, unit.index)
                for layer in layers[unit.first : unit.last] if keys else ():
                    self._adapted.append((layer, _added(layer, keys, rank, alpha, config)))
        self.hook()

    def hook(self) -> None:
        """Attach the pairs to the current linear layers. Call this again if these layers are
        replaced.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = [h for layer, adapters in self._adapted for h in adapters.hook(layer)]

    @torch.no_grad()
    def merge(self) -> None:
        """Add the low-rank updates to the layers' weights, which must not be quantized, and remove
        the adapters.
        """
        for handle in self._handles:
            handle.remove()
        for layer, adapters in self._adapted:
            for key, pairs in adapters.named_pairs():
                linear = linear_of(layer, key)
                weight = linear.get_parameter("weight")
                weight.copy_(adapted(linear, weight, pairs))
            delattr(layer, ADAPTERS)
        self._adapted.clear()


def _added(
    layer: torch.nn.Module, keys: Sequence[str], rank: int, alpha: float, config: TrainingConfig
) -> LayerAdapters:
    """Add the low-rank pairs to a layer, and return them."""
    adapters = LayerAdapters()
    for name, module in list(layer.named_modules()):
        shape = linear_shape(module)
        # torch's attention reads the weight of such a layer directly and never calls it.
        if shape is None or isinstance(module, NonDynamicallyQuantizableLinear):
            continue
        parameter = next(layer.parameters())
        dtype = torch.float32 if config.adapters_full_precision else parameter.dtype
        pairs = torch.nn.ModuleDict(
            {key: LowRankPair(*shape, rank, alpha, config.qlora_dropout) for key in keys}
        )
        key = name.replace(".", SEPARATOR) or ITSELF
        adapters[key] = pairs.to(parameter.device, dtype)
    layer.add_module(ADAPTERS, adapters)
    return adapters


def rank_of(config: TrainingConfig, stack: int) -> tuple[int, float]:
    """Return rank and alpha of a stack's matrices. If the stack has its own rank, alpha is
    scaled.
    """
    rank = config.qlora_rank
    if config.qlora_strategy == "variable":
        rank = (config.qlora_ranks or {}).get(stack, rank)
    return rank, config.qlora_alpha * rank / config.qlora_rank


def linear_shape(module: torch.nn.Module) -> tuple[int, int] | None:
    """Return the input and output sizes of a linear layer, or None for other modules."""
    if isinstance(module, torch.nn.Linear):
        return module.in_features, module.out_features
    if is_conv1d(module):
        num_in, num_out = module.get_parameter("weight").shape
        return int(num_in), int(num_out)
    return None
