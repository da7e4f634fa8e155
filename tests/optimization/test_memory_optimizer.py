"""The memory optimizer: seed 002's samples run as written, and what each method does."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, TensorDataset

from infrastructure.optimization import memory_optimizer as module
from infrastructure.optimization.checkpointing import can_do
from infrastructure.optimization.memory_optimizer import create_memory_optimizer
from infrastructure.optimization.memory_readings import MemoryInfo

SAMPLE = """
from infrastructure.optimization.checkpointing import can_do
from infrastructure.optimization.memory_optimizer import create_memory_optimizer

# Create optimizer
optimizer = create_memory_optimizer(max_memory_percent=85.0)

# Optimize model for training
optimized_model = optimizer.optimize_for_training(model)

# Create memory-efficient dataloader
dataloader = optimizer.create_memory_efficient_dataloader(dataset)

# Memory profiling
with optimizer.memory_profiler("training_step"):
    # Training code here
    pass
"""
DEBUGGING = """
with optimizer.memory_profiler("operation"):
    # Code to profile
    pass
memory_info = optimizer.get_memory_info()
recommendations = optimizer.get_memory_recommendations()
"""
INPUTS = torch.arange(512).view(4, 128) % 300


def test_the_samples_of_the_specification_run_as_written(small_llama: Any) -> None:
    names: dict[str, Any] = {"model": small_llama, "dataset": TensorDataset(INPUTS)}
    exec(SAMPLE + DEBUGGING, names)
    assert names["optimized_model"] is small_llama
    [batch] = [batch for [batch] in names["dataloader"]]
    assert batch.shape == INPUTS.shape
    assert names["optimizer"].optimize() >= 0
    assert [profile.name for profile in names["optimizer"].profiles] == [
        "training_step",
        "operation",
    ]
    assert names["memory_info"].process_bytes > 0
    assert isinstance(names["recommendations"], list)


def test_a_model_with_room_to_spare_keeps_its_activations(small_llama: Any) -> None:
    optimizer = create_memory_optimizer()
    optimizer.optimize_for_training(small_llama)
    assert not small_llama.is_gradient_checkpointing
    assert optimizer.applied == ["optimization.use_cache_turned_off()"]
    assert small_llama.config.use_cache is False


def test_a_model_that_fills_the_memory_computes_them_again(
    small_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(4 * p.numel() for p in small_llama.parameters())
    # Four times the weights are half of what is free, of the weights, and not of 15% of the whole.
    for more, is_crowded in ((10, False), (-10, True)):
        tight = MemoryInfo(100 * weights, 22 * weights + more, 1, 0, 1)
        monkeypatch.setattr(module, "read_memory", lambda tight=tight: tight)
        optimizer = create_memory_optimizer()
        optimizer.optimize_for_training(small_llama)
        assert small_llama.is_gradient_checkpointing is is_crowded
    assert optimizer.applied == ["gradient checkpointing: True"]


@pytest.mark.parametrize("mode", [True, "selective", "offload"])
def test_checkpointing_that_was_requested_is_done(small_llama: Any, mode: bool | str) -> None:
    if mode == "selective" and not can_do(small_llama, mode):
        pytest.skip("this transformers checkpoints every block or none")
    optimizer = create_memory_optimizer(gradient_checkpointing=mode)
    optimizer.optimize_for_training(small_llama)
    assert small_llama.is_gradient_checkpointing


def test_a_model_that_cannot_is_left_alone_unless_it_was_requested() -> None:
    layer = torch.nn.Linear(4, 4)
    assert create_memory_optimizer().optimize_for_training(layer) is layer
    with pytest.raises(ValueError, match=r"optimization\.no_gradient_checkpointing.*model=Linear"):
        create_memory_optimizer(gradient_checkpointing=True).optimize_for_training(layer)


def test_recommendations_are_for_the_optimized_model(small_llama: Any) -> None:
    optimizer = create_memory_optimizer()
    assert optimizer.get_memory_recommendations() == []
    optimizer.optimize_for_training(small_llama)
    [last] = [str(one) for one in optimizer.get_memory_recommendations()][-1:]
    assert "(change=optimization.checkpointing(), saved=optimization.activations()," in last


def test_a_block_is_profiled_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, module.__name__)
    optimizer = create_memory_optimizer()
    with optimizer.memory_profiler("step") as profile:
        torch.ones(2**20)
    assert optimizer.profiles == [profile]
    assert "optimization.memory_profile_line(name=step, peak=" in caplog.text


class Numbers(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(10.0))


def test_a_stream_is_loaded_in_its_order() -> None:
    loader = create_memory_optimizer().create_memory_efficient_dataloader(Numbers(), batch_size=5)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


class Pictures(Dataset[torch.Tensor]):
    """Large items; only their sizes matter here."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1000, 1000)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine's cores
@pytest.mark.parametrize(
    ("available", "num_cores", "num_items", "workers"),
    [
        (2**40, 8, 10_000, 4),
        (4 * 10**9, 8, 10_000, 1),  # of the 4 GB, 1.2 GB are to stay free, and each takes 2
        (1 * 10**9, 8, 10_000, 0),
        (2**40, 3, 10_000, 2),
        (2**40, 2, 10_000, 0),
        (2**40, 8, 320, 4),
        (2**40, 8, 319, 0),
    ],
)
def test_workers_are_as_many_as_memory_allows(
    available: int, num_cores: int, num_items: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = MemoryInfo(2 * available, available, 10**9, 0, 10**9)
    monkeypatch.setattr(module, "read_memory", lambda: info)
    cores = type("Processor", (), {"num_cores": num_cores})
    monkeypatch.setattr(module, "processor", lambda: cores)
    monkeypatch.setattr(Pictures, "__len__", lambda _: num_items)
    loader = create_memory_optimizer().create_memory_efficient_dataloader(Pictures())
    assert (loader.num_workers, loader.batch_size) == (workers, 32)
    assert isinstance(loader.sampler, RandomSampler)
    assert loader.pin_memory is torch.cuda.is_available()


def test_options_that_are_given_hold() -> None:
    loader = create_memory_optimizer().create_memory_efficient_dataloader(
        TensorDataset(INPUTS), batch_size=2, shuffle=False, num_workers=0
    )
    assert [batch[0].shape[0] for batch in loader] == [2, 2]


def test_batches_that_the_user_has_drawn_up_are_loaded_as_they_are() -> None:
    loader = create_memory_optimizer().create_memory_efficient_dataloader(
        TensorDataset(torch.arange(4)), batch_sampler=[[3, 0], [2]]
    )
    assert [batch[0].tolist() for batch in loader] == [[3, 0], [2]]


def test_memory_is_released_above_the_share_only() -> None:
    assert create_memory_optimizer(max_memory_percent=100).release_if_needed() is False
    assert create_memory_optimizer(max_memory_percent=0.001).release_if_needed() is True


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_memory_percent": 0}, r"invalid_max_memory_percent\(max_memory_percent=0\)"),
        ({"max_memory_percent": 101}, r"invalid_max_memory_percent\(max_memory_percent=101\)"),
        ({"gradient_checkpointing": "some"}, r"invalid_checkpointing_mode\(.*=some\)"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(ValueError, match=code):
        create_memory_optimizer(**settings)
