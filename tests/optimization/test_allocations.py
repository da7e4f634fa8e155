import torch

from infrastructure.optimization.allocations import AllocationCounter, kept_for_backward

FLOAT_BYTES = 4


def test_the_line_that_allocates_most_is_named_with_its_bytes() -> None:
    with AllocationCounter() as counter:
        small = torch.zeros(1000)
        large = torch.zeros(100_000)
        view = large[10:]  # no memory of its own
    lines = counter.top(5)
    assert lines[0][0].startswith(f"{__file__}:")
    assert [size for _, size in lines] == [100_000 * FLOAT_BYTES, 1000 * FLOAT_BYTES]
    assert len(view) + len(small) > 0


def test_the_backward_pass_counts_for_the_line_that_calls_it() -> None:
    weight = torch.ones(50_000, requires_grad=True)
    with AllocationCounter() as counter:
        loss = (weight * 2).sum()
        loss.backward()
    assert sum(counter.bytes_of_line.values()) >= 2 * 50_000 * FLOAT_BYTES
    assert all(line.startswith(__file__) for line in counter.bytes_of_line)


def test_what_is_kept_for_the_backward_pass_is_counted_once_and_without_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Tanh())
    inputs = torch.randn(7, 10)
    with kept_for_backward(model) as total:
        loss = model(inputs).sum()
    # the input of the layer, and the output of each Tanh
    assert total[0] == FLOAT_BYTES * (7 * 10 + 2 * 7 * 20)
    loss.backward()
    assert model[0].weight.grad is not None
