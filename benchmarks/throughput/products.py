"""The ruler: the matrix products of a training step, and nothing else.

A linear layer takes three products: what it gives, the gradient of what it is given, and that of
its weight. Frozen weights have no gradient, nor has what the first layers are given where the
embeddings are frozen. The output head computes only the tokens whose successor is learnt.
Attention's products are left out: another implementation has others.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.throughput.systems import DTYPES
from benchmarks.throughput.workbench import Workbench
from benchmarks.turns import Clock


@dataclass(frozen=True)
class Layer:
    """The products of a linear layer in a step.

    Attributes:
        rows: tokens that go through it.
        has_input_gradient: whether the gradient of what it is given is needed.
        has_weight_gradient: whether its weight trains.
    """

    rows: int
    inputs: int
    outputs: int
    has_input_gradient: bool
    has_weight_gradient: bool

    @property
    def num_products(self) -> int:
        return 1 + self.has_input_gradient + self.has_weight_gradient

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inputs * self.outputs * self.num_products


@dataclass(frozen=True)
class StepProducts:
    """The products of a step of the middle size."""

    num_tokens: int
    layers: tuple[Layer, ...]

    @property
    def flops(self) -> int:
        return sum(layer.flops for layer in self.layers)

    def train(self, precision: str, num_steps: int, clock: Clock) -> None:
        """Do them once a step, as a system does its steps."""
        products = list(self._products(DTYPES[precision]))
        for _ in range(num_steps):
            for left, right, output in products:
                torch.mm(left, right, out=output)
            clock.num_tokens += self.num_tokens
            clock.mark()

    def _products(self, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, ...]]:
        """Factors and product of each. Layers have weights of their own, as in a model; what goes
        through them is shared by those of one shape."""
        made: dict[tuple[str, Layer], torch.Tensor] = {}

        def shared(name: str, layer: Layer, *shape: int) -> torch.Tensor:
            if (name, layer) not in made:
                made[name, layer] = torch.randn(shape).to(dtype)
            return made[name, layer]

        for layer in self.layers:
            given = shared("given", layer, layer.rows, layer.inputs)
            result = shared("result", layer, layer.rows, layer.outputs)
            error = shared("error", layer, layer.rows, layer.outputs)
            weight = torch.randn(layer.outputs, layer.inputs).to(dtype)
            yield given, weight.t(), result
            if layer.has_input_gradient:
                yield error, weight, shared("gradient", layer, layer.rows, layer.inputs)
            if layer.has_weight_gradient:
                yield error.t(), given, torch.empty_like(weight)


def step_products(workbench: Workbench, num_steps: int) -> StepProducts:
    """Of a step with as many tokens, and as many that are learnt, as the middle one has."""
    batches = [workbench.batch(step) for step in range(num_steps)]
    tokens = round(median(sum(len(row["input_ids"]) for row in batch) for batch in batches))
    learnt = round(median(sum(map(num_learnt, batch)) for batch in batches))
    model = workbench.create_model(torch.float32)
    return StepProducts(tokens, tuple(layers_of(model, tokens, learnt)))


def num_learnt(row: dict[str, list[int]]) -> int:
    return sum(label != -100 for label in row["labels"][1:])


def layers_of(model: Any, tokens: int, learnt: int) -> list[Layer]:
    """Each linear layer, PEFT's small ones too; what needs a gradient is seen in a forward pass."""
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    needs: Counter[torch.nn.Module] = Counter()

    def see(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        needs[module] += given[0].requires_grad

    handles = [module.register_forward_pre_hook(see) for module in linear]
    model(input_ids=torch.zeros(1, 4, dtype=torch.int64))
    for handle in handles:
        handle.remove()
    head = model.get_output_embeddings()
    return [
        Layer(
            rows=learnt if module is head else tokens,
            inputs=module.in_features,
            outputs=module.out_features,
            has_input_gradient=needs[module] > 0,
            has_weight_gradient=module.weight.requires_grad,
        )
        for module in linear
    ]
