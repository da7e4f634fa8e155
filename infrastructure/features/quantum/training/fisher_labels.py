"""Labels sampled from the model, with which squared gradients give a Fisher matrix.

With labels from the data, squared gradients are the empirical Fisher, which is not a curvature
(Kunstner et al. 2019, arXiv 1905.12558).
"""

import torch

from infrastructure.core.errors import InputError
from infrastructure.models.chunked_loss import chunk_rows
from infrastructure.models.model_inputs import call_model, logits_of
from infrastructure.models.packed_attention import model_arguments
from infrastructure.models.token_loss import last_hidden_state, output_head
from infrastructure.training.core.precision import Precision
from infrastructure.training.model_adapters.base_adapter import Batch, ModelAdapter
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter


class SampledLabels:
    """A sampler of labels from the model, with its own random state.

    Args:
        seed: seed of the labels; the same seed, model and batches give the same labels on the same
            device.

    Raises:
        ValueError: the model is not a language model.
    """

    def __init__(
        self, model: torch.nn.Module, adapter: ModelAdapter, precision: Precision, seed: int
    ) -> None:
        if not isinstance(adapter, StandardModelAdapter):
            raise InputError("quantum.no_labels_to_sample", adapter=type(adapter).__name__)
        self.model, self.precision, self.token_loss = model, precision, adapter.token_loss
        self.generator = torch.Generator(adapter.device).manual_seed(seed)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with targets that are sampled from the model, at the same positions."""
        self.token_loss.prepare(self.model)
        with self.precision.autocast():
            arguments, positions = model_arguments(self.model, batch), batch["target_positions"]
            if self.token_loss.method == "hidden states":
                hidden = last_hidden_state(self.model, arguments).flatten(0, 1)[positions]
                head = output_head(self.model)
                assert head is not None
                size = chunk_rows(head.weight.shape[0], hidden.device)
                drawn = [self._draw(head(part)) for part in hidden.split(size)]
            else:
                logits = logits_of(call_model(self.model, arguments))
                drawn = [self._draw(logits.flatten(0, 1)[positions])]
        return {**batch, "targets": torch.cat(drawn)}

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        if not len(logits):
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        shares = logits.float().softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=self.generator).squeeze(1)
