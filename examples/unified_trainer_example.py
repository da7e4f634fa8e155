"""Block-wise training of a model in memory: seven ways, on a CPU, in half a minute.

    python examples/unified_trainer_example.py

Nothing is downloaded. The model is a tiny Llama with new weights; yours may come from
`AutoModelForCausalLM.from_pretrained`. What each setting means, and which of them go together, is
in `infrastructure/training/strategies/README.md`. `temper train` takes the same settings for a
model and a data file by name, with backup, reports and everything else that belongs to a run.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from infrastructure.training import ProgressiveConfig, TrainingConfig, UnifiedTrainer
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook

# Tokens: padding, beginning of a row, the ten digits, and one that stands for a hidden token.
PAD, BEGIN, ZERO, MASK, VOCABULARY = 0, 1, 2, 12, 13
PERIOD, LENGTH = 3, 13


def repeating_rows(count: int = 256) -> list[dict[str, torch.Tensor]]:
    """Rows that say the same three digits again and again, such as 3 1 4 3 1 4 3 1 4.

    A row is a dictionary of `input_ids` and, optionally, `labels` (-100: not trained on) and
    `attention_mask`, as for a Trainer of transformers.
    """
    random = torch.Generator().manual_seed(0)
    digits = torch.randint(0, 10, (count, PERIOD), generator=random).repeat(1, LENGTH // PERIOD)
    ids = torch.cat([torch.full((count, 1), BEGIN), digits + ZERO], dim=1)
    labels = ids.clone()
    labels[:, : 1 + PERIOD] = -100  # the first three could be any: nobody can learn them
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


def data_loader() -> DataLoader[Any]:
    """Any iterable of batches works. A DataLoader that shuffles is shuffled by the seed of the
    run, so an interrupted run has the same order when it resumes."""
    rows: Any = repeating_rows()
    return DataLoader(rows, batch_size=32, shuffle=True)


def new_model(num_layers: int = 4) -> LlamaForCausalLM:
    """The layers are found by structure, and checked by running the model in parts."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
    )
    return LlamaForCausalLM(config)


class Losses(Hook):
    """A hook has a method for each event that it handles; this one handles the end of a phase."""

    name = "losses"

    def __init__(self) -> None:
        self.by_phase: dict[str, float] = {}

    def phase_end(self, state: TrainingState) -> None:
        self.by_phase[state.phase.name] = state.loss
        print(f"   {state.phase.name:<32} step {state.step:>3}   loss {state.loss:.3f}")


class Break(Hook):
    """Interrupts a run in the middle, as a machine does that disappears."""

    name = "break"

    def __init__(self, after_step: int) -> None:
        self.after_step = after_step

    def step_end(self, state: TrainingState) -> None:
        if state.step == self.after_step:
            raise KeyboardInterrupt


def settings(**more: Any) -> TrainingConfig:
    """Epochs are those of each phase. A rate has to be given for new weights: "auto" is that of
    weights that have been trained before. The batches are the loader's."""
    return TrainingConfig(**{"num_epochs": 6, "learning_rate": 5e-3, "warmup_steps": 4, **more})


def block_wise() -> None:
    """Two blocks of two layers, one after the other.

    A block trains with the head right above it; the layers below are finished, and only hand hidden
    states up. What they give is computed once for each example and kept on the disk for the other
    epochs (`cache_activations`). Without its head a block could not learn from the loss: final norm
    and head train with the first block.
    """
    config = settings(mode="blockwise", block_size=2)
    UnifiedTrainer(config, hooks=[Losses()]).train_all_layers(data_loader(), new_model())


def growing() -> None:
    """A model that grows: first one stack, then all of it at once, with copies of the first stack
    in the place of the second. Of all ways to grow, evidence favours this one."""
    progressive = ProgressiveConfig(target_stacks=2, growth="once", init="copy")
    config = settings(strategy="progressive", progressive=progressive)
    UnifiedTrainer(config, hooks=[Losses()]).train_all_layers(data_loader(), new_model())


def stack_by_stack_at_once() -> None:
    """All stacks in every step, each by itself: no gradient goes from one to the one below, so the
    activations of one stack at a time are kept. With `reconstruct` the stacks below the top do not
    guess tokens, but learn to keep what they are given (LoPT)."""
    config = settings(
        strategy="end_to_end",
        end_to_end_scope="stackwise",
        progressive=ProgressiveConfig(target_stacks=2),
        local_loss="reconstruct",
        num_epochs=12,
    )
    UnifiedTrainer(config, hooks=[Losses()]).train_all_layers(data_loader(), new_model())


def quantised() -> None:
    """The finished block is stored in 8 bits, and low-rank matrices next to it continue to train.
    At the end they are merged into a plain model."""
    config = settings(
        mode="blockwise",
        block_size=2,
        quantization_enabled=True,
        quantization_type="nf_fp8",
        qlora_enabled=True,
        qlora_rank=8,
    )
    model = new_model()
    UnifiedTrainer(config, hooks=[Losses()]).train_all_layers(data_loader(), model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def masked() -> None:
    """Masked diffusion: a share of the tokens is masked, and the model, which attends in both
    directions, predicts them. Here each example draws its share; with `mode="blockwise"` or
    `strategy="progressive"` each stack has its own share.
    """
    config = settings(
        strategy="end_to_end",
        time_step_masking=True,
        num_time_steps=10,
        time_step_mask_fractions={0: 0.2, 9: 1.0},  # linear between
        time_interpretation="input",
        num_epochs=20,
    )
    model = new_model()
    model.config.mask_token_id = MASK  # without it, the last token of the vocabulary
    UnifiedTrainer(config, hooks=[Losses()]).train_all_layers(data_loader(), model)


def broken_off() -> bool:
    """With `output_dir`, checkpoints are written. The same call resumes from them, in the middle of
    any phase, and ends with exactly the weights of an uninterrupted run. Settings, data or layers
    that have changed in between are refused."""
    config = settings(mode="blockwise", block_size=2, num_epochs=4, checkpoint_frequency=10)
    undisturbed = new_model()
    UnifiedTrainer(config).train_all_layers(data_loader(), undisturbed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer = UnifiedTrainer(config, output_dir=folder, hooks=[Break(after_step=45)])
            trainer.train_all_layers(data_loader(), new_model())
        except KeyboardInterrupt:
            print("   broken off after step 45; in the folder:", *sorted(names_in(folder)))
        model = new_model()
        UnifiedTrainer(config, output_dir=folder).train_all_layers(data_loader(), model)
    pairs = zip(undisturbed.parameters(), model.parameters(), strict=True)
    is_same = all(torch.equal(one, other) for one, other in pairs)
    print("   the same weights as undisturbed:", is_same)
    return is_same


def names_in(folder: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


class ResidualLayer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = hidden + self.inner(hidden)
        return given


def own_layers() -> None:
    """Layers of any kind, which hand hidden states of one shape on: here they add two numbers.
    What comes before and after them is given too, and a loss, if it is another than cross-entropy
    for whole numbers and the mean squared error for others."""
    torch.manual_seed(0)
    inputs = torch.randint(0, 10, (512, 2))
    targets = inputs.sum(dim=1)
    embedding = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.Flatten())
    layers = [ResidualLayer(32) for _ in range(3)]
    UnifiedTrainer(settings(mode="layerwise", num_epochs=20), hooks=[Losses()]).train_all_layers(
        [(part, target) for part, target in zip(inputs.split(32), targets.split(32), strict=True)],
        layers,
        embedding=embedding,
        head=torch.nn.Linear(32, 19),
    )


def main() -> None:
    torch.set_num_threads(1)  # for so small a model one is fastest
    print("1  block after block")
    block_wise()
    print("2  a model that grows")
    growing()
    print("3  all stacks at once, each by itself")
    stack_by_stack_at_once()
    print("4  finished blocks in 8 bits, with low-rank matrices")
    quantised()
    print("5  hidden tokens")
    masked()
    print("6  broken off, and gone on")
    broken_off()
    print("7  layers of one's own")
    own_layers()


if __name__ == "__main__":
    main()
