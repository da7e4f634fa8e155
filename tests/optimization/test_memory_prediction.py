"""The line through measured points, and what a process may take."""

from dataclasses import replace
from types import SimpleNamespace

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


def on_machine(
    monkeypatch: pytest.MonkeyPatch, total: int, available: int, own: int, allowed: int | None
) -> None:
    there = SimpleNamespace(total_bytes=total, available_bytes=available)
    monkeypatch.setattr(memory_prediction, "memory", lambda: there)
    monkeypatch.setattr(memory_prediction, "resident_bytes", lambda: own)
    monkeypatch.setattr(memory_prediction, "allowed_bytes", lambda threads: allowed)


@pytest.mark.parametrize(
    ("budget", "num_processes", "allowed", "size"),
    [
        (MemoryBudget(), 1, None, 550),  # 100 + 600 - 15% of 1000
        (MemoryBudget(50.0), 1, None, 200),
        (MemoryBudget(100.0), 1, None, 700),
        (MemoryBudget(), 2, None, 275),
        (MemoryBudget(cpu_limit="30%"), 1, None, 300),
        (MemoryBudget(cpu_limit="30%"), 3, None, 100),
        (MemoryBudget(cpu_limit="90%", gpu_limit="1%"), 1, None, 550),
        (MemoryBudget(), 1, 400, 400),
        (MemoryBudget(), 2, 400, 275),
        (MemoryBudget(), 2, 200, 200),
    ],
)
def test_what_a_process_may_take_of_main_memory(
    monkeypatch: pytest.MonkeyPatch,
    budget: MemoryBudget,
    num_processes: int,
    allowed: int | None,
    size: int,
) -> None:
    on_machine(monkeypatch, total=1000, available=600, own=100, allowed=allowed)
    assert budget.size_bytes(CPU, num_processes) == size
    unbounded = replace(budget, max_percent=100.0).size_bytes(CPU, num_processes)
    assert budget.limit_bytes(CPU, num_processes) == unbounded


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (MemoryBudget(), 570),  # 95% of what is free or held by this process
        (MemoryBudget(10.0, cpu_limit="1%"), 570),
        (MemoryBudget(gpu_limit="30%"), 300),
        (MemoryBudget(gpu_limit="90%"), 570),
    ],
)
def test_what_a_process_may_take_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, budget: MemoryBudget, size: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100)
    assert budget.size_bytes(torch.device("cuda"), num_processes=2) == size


def test_all_that_a_configuration_allows_is_in_the_budget() -> None:
    config = DeploymentConfig(
        max_memory_percent=70.0,
        memory={"cpu_memory_limit": "3GB", "gpu_memory_fraction": 0.5},
        resources={"gpu": {"memory_limit": "4GB"}},
    )
    assert MemoryBudget.of(config) == MemoryBudget(70.0, "3GB", "4GB")


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        (MemoryBudget(), ""),
        (MemoryBudget(cpu_limit="90%"), ""),  # which the machine has not
        (MemoryBudget(cpu_limit="20%"), "optimization.raise_cpu_limit"),
        (MemoryBudget(cpu_limit="20%", gpu_limit="1%"), "optimization.raise_cpu_limit"),
        (MemoryBudget(gpu_limit="1%"), ""),  # of another device
    ],
)
def test_a_setting_is_named_where_it_is_what_keeps_a_training_small(
    monkeypatch: pytest.MonkeyPatch, budget: MemoryBudget, named: str
) -> None:
    on_machine(monkeypatch, total=1000, available=600, own=100, allowed=None)
    text = budget.way_out(CPU)
    assert ("optimization.raise_cpu_limit" in text) == bool(named)
    assert "gpu" not in text
    assert ("20%" in text) == bool(named)


def test_the_line_of_three_points_is_the_nearest_to_all() -> None:
    points = [MemoryPoint(0, 100), MemoryPoint(10, 200), MemoryPoint(20, 360)]
    line = fit_line(points, idle_bytes=0)
    assert (line.fixed_bytes, line.bytes_per_unit) == pytest.approx((90.0, 13.0))
