"""The line through measured points, and what a process may take."""

import psutil
import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.hardware import memory
from infrastructure.optimization import memory_prediction
from infrastructure.optimization.memory_prediction import MemoryBudget, MemoryPoint, fit_line

CPU = torch.device("cpu")


def test_two_points_give_the_line() -> None:
    line = fit_line([MemoryPoint(100, 1_000_000), MemoryPoint(200, 1_500_000)], 400_000)
    assert line.peak_bytes(1000) == 5_500_000


def test_one_point_gives_the_line_from_what_is_there_between_steps() -> None:
    line = fit_line([MemoryPoint(100, 1_000_000)], idle_bytes=400_000)
    assert line.peak_bytes(200) == 1_600_000


def test_noise_never_makes_larger_batches_smaller() -> None:
    line = fit_line([MemoryPoint(100, 1_000_000), MemoryPoint(200, 999_000)], 400_000)
    assert line.peak_bytes(1_000_000) == line.peak_bytes(1) == 999_500


def test_the_budget_leaves_the_share_that_is_to_stay_free() -> None:
    process = psutil.Process().memory_info().rss
    budget = MemoryBudget(max_percent=50.0)
    most = memory().total_bytes
    assert budget.size_bytes(CPU) <= process + memory().available_bytes - 0.45 * most
    assert budget.limit_bytes(CPU) > budget.size_bytes(CPU)


def test_threads_that_ranks_will_start_count_where_the_kernel_limits_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_prediction, "allowed_bytes", lambda threads: 1000 - threads)
    assert MemoryBudget().limit_bytes(CPU) == 1000
    assert MemoryBudget().limit_bytes(CPU, num_processes=2) < 1000


def test_a_limit_in_the_configuration_holds() -> None:
    config = DeploymentConfig(memory={"cpu_memory_limit": "1GB"}, max_memory_percent=100.0)
    assert MemoryBudget.of(config).size_bytes(CPU) == 1_000_000_000
    assert MemoryBudget.of(config).limit_bytes(CPU) == 1_000_000_000


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"memory": {"gpu_memory_fraction": 0.5}}, "50%"),
        ({"resources": {"gpu": {"memory_limit": "4GB"}}}, "4GB"),
        ({}, None),
    ],
)
def test_the_limit_of_a_gpu_has_two_spellings(settings: dict[str, object], limit: str) -> None:
    assert MemoryBudget.of(DeploymentConfig(**settings)).gpu_limit == limit
