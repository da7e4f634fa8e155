"""A sketch is linear, puts each entry into one bucket, and keeps inner products."""

import numpy as np
import pytest
import torch

from infrastructure.features.quantum.training.count_sketch import CHUNK_ENTRIES, CountSketch

CPU = torch.device("cpu")


def sketched(matrices: torch.Tensor, num_features: int, seed: int = 0) -> torch.Tensor:
    """Of (B, rows, columns), in chunks as its users give them."""
    sketch = CountSketch(num_features, seed, CPU)
    total = torch.zeros(len(matrices), num_features)
    step = sketch.rows_at_once(matrices.shape[2])
    for start in range(0, matrices.shape[1], step):
        sketch.add(total, matrices[:, start : start + step], 3, start)
    return total


def test_each_entry_goes_to_one_bucket_with_a_sign() -> None:
    entries = torch.eye(30).view(30, 5, 6)
    found = sketched(entries, 8)
    assert torch.equal(found.abs().sum(dim=1), torch.ones(30))
    assert torch.equal((found != 0).sum(dim=1), torch.ones(30, dtype=torch.int64))
    assert found.min() < 0 < found.max()


def test_it_is_linear_and_the_same_for_any_batch() -> None:
    a = torch.randn(4, 7, 9)
    whole = sketched(a, 16)
    assert torch.equal(whole[2:3], sketched(a[2:3], 16))
    assert torch.allclose(
        2 * whole[0] - whole[1], sketched((2 * a[0] - a[1])[None], 16)[0], atol=1e-5
    )


def test_seeds_differ_and_repeat() -> None:
    a = torch.randn(1, 7, 9)
    assert torch.equal(sketched(a, 64, 1), sketched(a, 64, 1))
    assert not torch.equal(sketched(a, 64, 1), sketched(a, 64, 2))


@pytest.mark.parametrize("num_features", [256, 4096])
def test_inner_products_are_kept_with_the_stated_variance(num_features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    a, noise = torch.randn(2, 1, 100, 100, generator=generator)
    b = 0.3 * a + noise
    pair = torch.cat([a / a.norm(), b / b.norm()])
    true = float((pair[0] * pair[1]).sum())
    found = [
        float(rows[0] @ rows[1]) for rows in (sketched(pair, num_features, s) for s in range(80))
    ]
    deviation = np.sqrt((1 + true**2) / num_features)
    assert np.std(found) == pytest.approx(deviation, rel=0.3)
    assert np.mean(found) == pytest.approx(true, abs=4 * deviation / np.sqrt(len(found)))


def test_a_matrix_larger_than_a_chunk() -> None:
    rows = CHUNK_ENTRIES // 512 + 3
    a = torch.randn(1, rows, 512)
    assert float(sketched(a, 4096).square().sum()) == pytest.approx(
        float(a.square().sum()), rel=0.1
    )
    alone = torch.zeros(1, rows, 512)
    alone[0, -1, -1] = 1.0
    assert float(sketched(alone, 4096).abs().sum()) == 1.0


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 0, 50), (1, 0, 50)), ((2, 0, 50), (2, 50, 50)), ((0, 50, 50), (1, 0, 50))],
)
def test_entries_of_different_places_are_not_taken_for_each_other(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """The same numbers in another layer, or in other rows, are orthogonal to these."""
    sketch = CountSketch(4096, 0, CPU)
    values = torch.randn(1, 100, 100, generator=torch.Generator().manual_seed(0))
    found = []
    for matrix, start, rows in (first, second, first):
        total = torch.zeros(1, 4096)
        sketch.add(total, values[:, :rows] / values[:, :rows].norm(), matrix, start)
        found.append(total[0])
    assert float(found[0] @ found[2]) == pytest.approx(1.0, abs=0.1)
    assert float(found[0] @ found[1]) == pytest.approx(0.0, abs=0.1)
