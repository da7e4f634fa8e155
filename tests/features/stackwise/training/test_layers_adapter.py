"""Any list of layers as a model, any loader of batches as its data."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.serving.example_order import epoch_order
from infrastructure.features.stackwise.training.layers_adapter import (
    LayersAdapter,
    LayersModel,
    LoaderSource,
    default_loss,
    inputs_and_targets,
)

NUM_ROWS, WIDTH = 10, 4
INPUTS = torch.arange(NUM_ROWS * WIDTH, dtype=torch.float32).reshape(NUM_ROWS, WIDTH) / 40
ROWS = TensorDataset(INPUTS, torch.arange(NUM_ROWS))


def numbers_of(source: LoaderSource, epoch: int = 0, start: int = 0) -> list[list[int]]:
    """Which rows each batch of an epoch holds."""
    batches = source.train_batches(epoch, start, source.batch_size)
    return [[int(number) for _, number in batch] for batch in batches]


# LoaderSource


def test_a_loader_that_shuffles_is_read_in_the_order_of_the_seed() -> None:
    loader = DataLoader(ROWS, batch_size=4, shuffle=True)
    source = LoaderSource(loader, seed=3)
    for epoch in (0, 1):
        order = epoch_order(NUM_ROWS, 3, epoch).tolist()
        assert numbers_of(source, epoch) == [order[:4], order[4:8], order[8:]]
        assert numbers_of(source, epoch, start=4) == [order[4:8], order[8:]]
    assert numbers_of(source, 0) != numbers_of(source, 1)
    assert numbers_of(LoaderSource(loader, seed=4)) != numbers_of(source)


def test_a_loader_that_does_not_shuffle_is_read_as_it_is() -> None:
    source = LoaderSource(DataLoader(ROWS, batch_size=4), seed=3)
    assert numbers_of(source, epoch=2) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_last_batch_is_dropped_where_the_loader_drops_it() -> None:
    source = LoaderSource(DataLoader(ROWS, batch_size=4, shuffle=True, drop_last=True), seed=0)
    assert source.num_examples == 8
    assert [len(batch) for batch in numbers_of(source)] == [4, 4]
    assert numbers_of(source)[1] == numbers_of(source, start=4)[0]
    order = epoch_order(NUM_ROWS, 0, 1).tolist()  # other rows are left over in each epoch
    assert numbers_of(source, epoch=1) == [order[:4], order[4:8]]
    with pytest.raises(ValueError, match=r"stackwise\.data_loader_empty"):
        LoaderSource(DataLoader(ROWS, batch_size=11, drop_last=True), seed=0)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(INPUTS)


@pytest.mark.parametrize(
    "loader",
    [
        [INPUTS[:4], INPUTS[4:8], INPUTS[8:]],
        DataLoader(Stream(), batch_size=4),
        DataLoader(INPUTS, batch_sampler=[range(4), range(4, 8), range(8, 10)]),  # type: ignore[arg-type]
    ],
    ids=["list", "iterable data set", "batch sampler"],
)
def test_batches_of_any_iterable_are_kept(loader: Any) -> None:
    source = LoaderSource(loader, seed=0)
    assert (source.num_examples, source.batch_size, source.shuffles) == (3, 1, False)
    for epoch in (0, 1):
        batches = [source.collate(list(one)) for one in source.train_batches(epoch, 0, 1)]
        assert torch.equal(torch.cat(batches), INPUTS)
    assert len(list(source.train_batches(0, 2, 1))) == 1


def test_a_generator_is_read_once() -> None:
    source = LoaderSource((batch for batch in INPUTS.split(5)), seed=0)
    assert [len(list(source.train_batches(epoch, 0, 1))) for epoch in (0, 1)] == [2, 2]


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(ROWS, replacement=True, num_samples=6),
        lambda: RandomSampler(ROWS, num_samples=6),
        lambda: WeightedRandomSampler([1.0] * NUM_ROWS, 6),
    ],
    ids=["with replacement", "of some", "weighted"],
)
def test_what_a_sampler_draws_is_drawn_again_by_the_seed(sampler: Callable[[], Any]) -> None:
    """It does not take each item once, so it cannot be shuffled in its place."""
    sources = [
        LoaderSource(DataLoader(ROWS, batch_size=3, sampler=sampler()), s) for s in (0, 0, 1)
    ]
    drawn = [[source.items[i][1].tolist() for i in range(2)] for source in sources]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sources[0].fingerprint == sources[1].fingerprint != sources[2].fingerprint
    before = torch.get_rng_state()
    LoaderSource(DataLoader(ROWS, batch_size=3, sampler=sampler()), 0)
    assert torch.equal(before, torch.get_rng_state())


class Numbers(Dataset[dict[str, Any]]):
    """Items as data sets give them: arrays, numbers, texts, lists."""

    def __init__(self, changed: int | None = None, **item: Any) -> None:
        self.changed, self.item = changed, item

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError
        item = {
            "x": np.full(3, index),
            "y": index,
            "text": "a",
            "all": [1.0, None],
            "z": np.int8(1),
        }
        return {**item, **(self.item if index == self.changed else {})}


def test_what_the_loader_does_with_its_items_is_in_the_fingerprint() -> None:
    given: list[dict[str, Any]] = [{}, {"shuffle": True}, {"drop_last": True}]
    prints = {LoaderSource(DataLoader(ROWS, batch_size=4, **more), 0).fingerprint for more in given}
    whole = INPUTS[:2].clone()
    items = (
        [whole],
        [whole.double()],
        [whole.view(torch.int32)],
        [whole.view(4, 2)],
        [{"a": whole}],
        [{"b": whole}],
    )
    prints |= {LoaderSource(one, 0).fingerprint for one in items}
    prints |= {LoaderSource([np.zeros(4, kind)], 0).fingerprint for kind in ("f4", "i4")}
    assert len(prints) == 11


def test_some_of_all_items_are_in_the_fingerprint_where_each_has_to_be_read() -> None:
    """From the first to one near the end."""
    loaders = [DataLoader(Numbers(n, y=-1), batch_size=2) for n in (None, 0, 100, 196)]
    assert len({LoaderSource(loader, 0).fingerprint for loader in loaders}) == 4


@pytest.mark.parametrize(
    "change",
    [{"x": np.zeros(3)}, {"y": 7}, {"text": "b"}, {"all": [2.0, None]}, {"z": np.int8(2)}],
    ids=lambda change: next(iter(change)),
)
def test_another_item_is_another_fingerprint(change: dict[str, Any]) -> None:
    loaders = [DataLoader(Numbers(changed, **change), batch_size=2) for changed in (None, 0)]
    assert LoaderSource(loaders[0], 0).fingerprint != LoaderSource(loaders[1], 0).fingerprint
    assert LoaderSource(loaders[0], 0).fingerprint == LoaderSource(loaders[0], 5).fingerprint


def test_all_that_is_in_memory_is_in_the_fingerprint() -> None:
    """Each of 1,000 items, not some of them."""
    values = torch.zeros(1000, 2, dtype=torch.bfloat16)
    before = LoaderSource(DataLoader(TensorDataset(values), batch_size=2), 0).fingerprint
    kept = LoaderSource(values.split(1), 0).fingerprint
    values[777, 1] = 1
    assert LoaderSource(DataLoader(TensorDataset(values), batch_size=2), 0).fingerprint != before
    assert LoaderSource(values.split(1), 0).fingerprint != kept


@pytest.mark.parametrize(
    ("loader", "sentence"),
    [
        ([], "stackwise.data_loader_empty"),
        (DataLoader([]), "stackwise.data_loader_empty"),  # type: ignore[arg-type]
        (5, "stackwise.not_a_data_loader"),
    ],
)
def test_a_loader_without_batches_is_refused(loader: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LoaderSource(loader, 0)


# batches


@pytest.mark.parametrize(
    ("batch", "has_targets"),
    [
        (INPUTS, False),
        ((INPUTS,), False),
        ((INPUTS, "y"), True),
        ([INPUTS, "y"], True),
        ({"input_ids": INPUTS, "labels": "y", "attention_mask": None}, True),
        ({"x": INPUTS, "y": "y"}, True),
        ({"inputs": INPUTS}, False),
    ],
)
def test_inputs_and_targets_of_a_batch(batch: Any, has_targets: bool) -> None:
    inputs, targets = inputs_and_targets(batch)
    assert inputs is INPUTS
    assert targets == "y" if has_targets else targets is INPUTS


@pytest.mark.parametrize(
    ("batch", "described"),
    [
        ("text", "of type str"),
        ((INPUTS, INPUTS, INPUTS), "of type tuple, with Tensor, Tensor, Tensor"),
        ({"images": INPUTS}, "of type dict with images"),
        ([], "of type list, with nothing"),
        (3, "of type int"),
    ],
)
def test_another_batch_is_refused(batch: Any, described: str) -> None:
    with pytest.raises(ValueError, match=rf"stackwise\.batch_type_unknown\(batch={described}\)"):
        inputs_and_targets(batch)


# losses


def test_the_default_loss_of_whole_numbers_is_cross_entropy() -> None:
    output = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 4, -100], [2, -100, 1]])
    expected = -sum(
        output[b, t].log_softmax(0)[targets[b, t]]
        for b in range(2)
        for t in range(3)
        if targets[b, t] != -100
    )
    assert torch.allclose(default_loss(output, targets), torch.as_tensor(expected))
    assert float(default_loss(output, torch.full((2, 3), -100))) == 0.0
    for half in (output.bfloat16(), output.half()):
        assert default_loss(half, targets.int()).dtype == torch.float32


def test_the_default_loss_of_numbers_is_the_mean_squared_error_of_each_row() -> None:
    assert float(default_loss(torch.ones(3, 4), torch.zeros(3, 4))) == 3.0


MISMATCH, SHAPE = r"stackwise\.targets_shape_mismatch\(targets", r"\({}\)"
OUTPUT = SHAPE.format("2, 3, 5")


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        (torch.zeros(2, 4), f"{MISMATCH}_shape={SHAPE.format('2, 4')}, output_shape={OUTPUT}"),
        (
            torch.zeros(2, 3, 5, dtype=torch.long),
            f"{MISMATCH}_shape={OUTPUT}, output_shape={OUTPUT}",
        ),
        (["a"], "stackwise.targets_not_a_tensor"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        default_loss(torch.zeros(2, 3, 5), targets)


# LayersAdapter


def adapter_of(source: LoaderSource, loss: Any = None) -> LayersAdapter:
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    model = LayersModel(layers, None, torch.nn.Linear(WIDTH, 3), INPUTS[:2])
    config = TrainingConfig()
    adapter = LayersAdapter(model, source, loss, ModelConfig(), config, torch.device("cpu"))
    adapter.initialize_model()
    return adapter


def test_what_the_model_is_looked_at_with_is_not_saved_with_it() -> None:
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    model = LayersModel(layers, torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 3), INPUTS)
    assert {name.partition(".")[0] for name in model.state_dict()} == {
        "embedding",
        "layers",
        "head",
    }
    expected = model.head(layers[1](layers[0](model.embedding(INPUTS))))
    assert torch.equal(model(INPUTS), expected)


def test_a_batch_in_pieces_has_the_gradient_of_the_whole() -> None:
    """Also where targets that do not count are unevenly spread."""
    marks = torch.tensor([0, -100, 2, 1, -100, -100, -100, 2, 1, 0])
    items = [(x, int(mark)) for x, mark in zip(INPUTS, marks, strict=True)]
    source = LoaderSource(DataLoader(items, batch_size=10), seed=0)  # type: ignore[arg-type]
    adapter = adapter_of(source)
    assert adapter.model is not None
    [whole] = source.train_batches(0, 0, 10)
    total = adapter.count_items(whole)
    assert total == 6
    assert adapter.count_tokens(whole) == 10
    gradients = []
    for pieces in ([whole], [whole[:5], whole[5:7], whole[7:]]):
        adapter.model.zero_grad()
        for piece in pieces:
            output = adapter.compute_loss(adapter.model, adapter.prepare_batch(piece))
            (output.loss_sum / total).backward()
        gradients.append([p.grad.clone() for p in adapter.model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-7)


def test_a_loss_of_ones_own_is_a_mean_over_rows() -> None:
    source = LoaderSource([(INPUTS, ["a"] * NUM_ROWS)], seed=0)
    adapter = adapter_of(source, lambda output, targets: output.sum() * 0 + len(targets))
    assert adapter.model is not None
    output = adapter.compute_loss(adapter.model, adapter.prepare_batch(source.items))
    assert (output.loss_sum.item(), output.num_items) == (100.0, 10)


@pytest.mark.parametrize(
    ("loss", "described"),
    [
        (lambda output, targets: output, r"a tensor \[10, 3\]"),
        (lambda output, targets: 0.5, "0.5"),
    ],
)
def test_a_loss_that_is_no_number_of_a_tensor_is_refused(loss: Any, described: str) -> None:
    source = LoaderSource([INPUTS], seed=0)
    adapter = adapter_of(source, loss)
    assert adapter.model is not None
    with pytest.raises(ValueError, match=rf"stackwise\.loss_not_a_scalar\(returned={described}\)"):
        adapter.compute_loss(adapter.model, adapter.prepare_batch(source.items))
