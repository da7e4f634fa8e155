"""A tiny Llama with its tokenizer, for proofs that run outside pytest."""

from pathlib import Path

import torch

from tests.conftest import train_tiny_tokenizer


def make_tiny_llama(folder: Path) -> Path:
    """Write one into `folder`, and return that."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    return folder
