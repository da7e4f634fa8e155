"""Models for the optimizers."""

from typing import Any

import pytest
import torch


@pytest.fixture
def small_llama() -> Any:
    """A Llama of four blocks with new weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).train()


class FakeGpu:
    """Stands for torch.cuda with one GPU, by the functions' real names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
        self.fractions: list[float] = []
        self.reserved = self.allocated = self.num_emptied = 0
        total = type("Properties", (), {"total_memory": 16 * 10**9})
        functions = {
            "get_device_capability": lambda device=None: capability,
            "get_device_name": lambda device=None: "Tesla T4",
            "get_device_properties": lambda device=None: total,
            "set_per_process_memory_fraction": lambda share, device: self.fractions.append(share),
            "memory_reserved": lambda device=None: self.reserved,
            "memory_allocated": lambda device=None: self.allocated,
            "empty_cache": self._empty_cache,
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch.cuda, name, function)

    def _empty_cache(self) -> None:
        self.num_emptied += 1
