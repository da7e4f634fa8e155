import torch

from infrastructure.optimization.allocations import AllocationCounter

FLOAT_BYTES = 4


def test_the_backward_pass_counts_for_the_line_that_calls_it() -> None:
    weight = torch.ones(50_000, requires_grad=True)
    with AllocationCounter() as counter:
        loss = (weight * 2).sum()
        loss.backward()
    assert sum(counter.bytes_of_line.values()) >= 2 * 50_000 * FLOAT_BYTES
    assert all(line.startswith(__file__) for line in counter.bytes_of_line)
