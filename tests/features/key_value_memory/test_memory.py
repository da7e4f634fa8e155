"""What a memory may read, and what it keeps."""

import pytest
import torch
import torch.nn.functional as F

from infrastructure.features.key_value_memory.memory import NO_ROW, KeyValueMemory, rows_of
from infrastructure.models.added_modules import attach
from tests.models.architectures import tiny_model as make

FACTS = {"layer": 1, "slots": 2, "heads": 2, "width": 16, "store": 3}


def test_a_row_has_one_number_padded_or_packed() -> None:
    first, second = [5, 6, 7, 5], [7, 6]
    padded = rows_of(
        torch.tensor([first, [*second, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), None
    )
    packed = rows_of(torch.tensor([first + second]), None, torch.tensor([[0, 1, 2, 3, 0, 1]]))
    assert packed[0, :4].unique().tolist() == padded[0].unique().tolist()
    assert packed[0, 4:].unique().tolist() == padded[1].unique().tolist()
    turned = rows_of(torch.tensor([[5, 7, 6, 5], [6, 6, 7, 4]]), None, None)
    assert len({*padded.unique().tolist(), *turned.unique().tolist(), NO_ROW}) == 5


def test_the_store_keeps_the_newest() -> None:
    model = make("llama")
    memory = KeyValueMemory.build(model, FACTS)
    rows = torch.arange(1, 6)
    memory.store(torch.ones(2, 32), rows[:2], rows[:2])
    memory.store(torch.ones(2, 32), rows[2:4], rows[2:4])
    assert memory.store_tokens.tolist() == [4, 2, 3]
    memory.store(torch.ones(5, 32), rows, rows)
    assert sorted(memory.store_tokens.tolist()) == [3, 4, 5]
    assert int(memory.num_stored) == 7


def test_a_row_never_reads_itself_in_training_and_others_do() -> None:
    model = make("llama").train()
    torch.manual_seed(0)
    memory = KeyValueMemory.build(model, FACTS)
    attach(model, memory)
    torch.nn.init.ones_(memory.gate)
    ids = torch.tensor([[5, 6, 7, 8], [9, 3, 4, 7]])
    model(ids)
    assert memory.seen is not None
    states, rows = memory.seen
    memory.store(states[:3], ids[0, 1:], rows[:3])  # of the first row
    before = model(ids).logits
    memory.store_tokens.copy_(torch.tensor([11, 12, 13]))
    after = model(ids).logits
    assert torch.equal(after[0], before[0])
    assert not torch.allclose(after[1], before[1])
    model.eval()  # where it is never trained on, everything is read
    assert not torch.allclose(model(ids).logits[0], before[0])


def test_a_state_finds_its_like_among_many() -> None:
    torch.manual_seed(0)
    memory = KeyValueMemory(32, layer=0, slots=2, heads=1, width=32, capacity=300)
    common = 9 * torch.randn(32)  # as hidden states have it: without whitening all are near
    states = common + torch.randn(300, 32)
    memory.store(states, torch.arange(300), torch.arange(1, 301))
    near = states + 0.3 * torch.randn(300, 32)
    queries, keys = (memory._heads(memory.query(one)) for one in (near, states))
    plain = F.cosine_similarity(queries[0][:, None], keys[0], dim=-1)
    queries, keys = memory._whitened(queries, keys)
    whitened = F.cosine_similarity(queries[0][:, None], keys[0], dim=-1)
    own = torch.eye(300, dtype=torch.bool)
    assert plain[~own].mean() > 0.9
    assert whitened[~own].abs().mean() < 0.2
    assert whitened[own].mean() > 0.8


@pytest.mark.parametrize("capacity", [0, 3])
def test_what_is_read_is_attention_to_slots_and_stored_tokens(capacity: int) -> None:
    torch.manual_seed(0)
    model = make("llama")
    memory = KeyValueMemory.build(model, {**FACTS, "store": capacity})
    attach(model, memory)
    memory.train()
    hidden, table = torch.randn(1, 4, 32), model.get_input_embeddings().weight
    assert torch.equal(memory(hidden), hidden)  # the gate is closed at first
    torch.nn.init.normal_(memory.gate)
    states = F.rms_norm(hidden[0], (32,)) * memory.norm.weight
    queries = memory.query(states)
    keys = values = None
    if capacity:
        memory.store(torch.randn(2, 32), torch.tensor([5, 6]), torch.tensor([7, 8]))
        memory._rows = torch.tensor([[8, 1, 1, 1]])
        keys = memory.query(memory.store_keys)
        values = memory.value(F.rms_norm(table[memory.store_tokens], (32,)))
    read = []
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        requested, known, answers = queries[:, part], memory.slot_keys[:, part], memory.slot_values
        may_read = torch.ones(4, 2 + capacity, dtype=torch.bool)
        if keys is not None and values is not None:
            filled = keys[:2, part]
            spread = torch.cov(filled.T, correction=0)
            spread += torch.eye(8) * (1e-3 * spread.diagonal().mean() + 1e-12)
            root, mean = torch.linalg.cholesky(spread), filled.mean(0)
            requested, stored = (
                torch.linalg.solve(root, (one - mean).T).T for one in (requested, keys[:, part])
            )
            known, answers = torch.cat([known, stored]), torch.cat([answers, values])
            may_read[:, 4] = False  # not filled yet
            may_read[0, 3] = False  # of the same row
        cosines = F.normalize(requested, dim=-1) @ F.normalize(known, dim=-1).T
        weights = (16 * cosines).masked_fill(~may_read, -torch.inf).softmax(-1)
        read.append(weights @ answers[:, part])
    expected = hidden + memory.gate * memory.output(torch.cat(read, dim=1))
    torch.testing.assert_close(memory(hidden), expected, rtol=1e-4, atol=1e-4)
    assert memory.facts == {**FACTS, "store": capacity}
    assert (memory.seen is not None) == bool(capacity)


def test_rows_of_pictures_have_three_positions_and_other_masks_are_passed_over() -> None:
    ids, positions = torch.tensor([[5, 6, 7, 5]]), torch.tensor([[0, 1, 0, 1]])
    plain = rows_of(ids, None, positions)
    assert torch.equal(rows_of(ids, None, positions.expand(3, 1, 4)), plain)
    assert torch.equal(rows_of(ids, torch.ones(1, 1, 4, 4), positions), plain)
    two = torch.tensor([[5, 6], [7, 5]])
    each = rows_of(two, None, torch.tensor([[0, 1], [0, 1]]))
    assert torch.equal(each.flatten(), plain.flatten())
    assert (plain > 0).all()


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"layer": 2}, r"key_value_memory\.layer_out_of_range\(layer=2, last=1\)"),
        ({"heads": 3}, r"key_value_memory\.heads_not_divisor\(heads=3, width=16\)"),
    ],
)
def test_sizes_that_cannot_be_are_refused(facts: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        KeyValueMemory.build(make("llama"), {**FACTS, **facts})
