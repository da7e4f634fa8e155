"""A change of any weight, of their order, name or type is seen; where they lie is not."""

from types import SimpleNamespace

import pytest
import torch

from infrastructure.models import weights_hash as module
from infrastructure.models.weights_hash import frozen_hash, model_hash, weights_hash
from tests.training.hf_bridge.tiny_trainer import tiny_lora, tiny_model


def hash_of(tensor: torch.Tensor, name: str = "w") -> str | None:
    return weights_hash([(name, tensor)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
@pytest.mark.parametrize("size", [1, 7, 64, 1003])
def test_each_weight_and_its_place_count(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORDS", 16)
    module._factors.cache_clear()
    weights = torch.randint(1, 100, (size,), generator=torch.Generator().manual_seed(0)).to(dtype)
    weights[0], weights[-1] = 101, 102
    whole = hash_of(weights)
    assert hash_of(weights.clone()) == whole
    for index in {0, size // 2, size - 1}:
        other = weights.clone()
        other[index] = 103
        assert hash_of(other) != whole, index
    if size > 1:
        assert hash_of(weights.flip(0)) != whole
        assert hash_of(torch.cat([weights, weights])[1 : 1 + size]) == hash_of(weights.roll(-1))
    module._factors.cache_clear()


def test_name_type_and_shape_count() -> None:
    ones = torch.ones(4, 4)
    others = [hash_of(ones, "v"), hash_of(ones.view(2, 8)), hash_of(ones.view(torch.int32))]
    assert len({hash_of(ones), *others}) == 4
    assert hash_of(torch.ones(4, 8)[:, ::2]) == hash_of(ones), "how it lies in memory does not"
    assert hash_of(torch.empty(0)) != hash_of(torch.empty(0, 1))
    assert weights_hash([]) is None


def test_frozen_weights_count_and_those_that_train_do_not() -> None:
    assert frozen_hash(tiny_model()) is None
    before = frozen_hash(tiny_lora())
    assert before == frozen_hash(tiny_lora())
    for name, differs in (("lora_A", False), ("ln_1.weight", True)):
        model = tiny_lora()
        with torch.no_grad():
            next(p for n, p in model.named_parameters() if name in n).view(-1)[0] += 1e-6
        assert (frozen_hash(model) != before) is differs


def test_of_another_model_all_weights_count() -> None:
    model = tiny_model()
    before = model_hash(model)
    with torch.no_grad():
        model.transformer.wte.weight[5, 5] += 1e-6
    assert model_hash(model) != before


def test_a_tensor_that_is_made_of_several_counts_with_each_of_them() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    ones, twos = torch.ones(5), torch.full((5,), 2.0)
    pairs = [(ones, ones), (ones, twos), (twos, ones)]
    hashes = [weights_hash([("w", TwoTensor(a, b))]) for a, b in pairs]
    assert len({*hashes}) == 3
    assert weights_hash([("w", TwoTensor(ones, twos.clone()))]) == hashes[1]


class Both(torch.nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, torch.nn.Parameter(torch.full((2,), float(ord(name)))))


def test_the_order_in_which_a_model_was_built_does_not_count() -> None:
    assert model_hash(Both("a", "b")) == model_hash(Both("b", "a")) != model_hash(Both("a", "c"))
    assert model_hash(torch.nn.Identity()) is None
    assert len(str(model_hash(Both("a")))) == 64


def test_a_frozen_weight_that_lies_nowhere_is_passed_over() -> None:
    model = tiny_lora()
    whole = frozen_hash(model)
    below = model.get_base_model().transformer.h[0].ln_1
    below.weight = torch.nn.Parameter(torch.empty(16, device="meta"), requires_grad=False)
    assert None is not frozen_hash(model) == frozen_hash(model) != whole


def test_the_scales_of_a_quantized_weight_count() -> None:
    def quantized(scale: float) -> torch.Tensor:
        tensor = torch.ones(4, dtype=torch.uint8)
        tensor.quant_state = SimpleNamespace(absmax=torch.tensor([scale]))  # type: ignore[attr-defined]
        return tensor

    assert hash_of(quantized(1.0)) == hash_of(quantized(1.0)) != hash_of(quantized(2.0))
    assert hash_of(quantized(1.0)) != hash_of(torch.ones(4, dtype=torch.uint8))


def test_weights_of_many_words_count_piece_by_piece() -> None:
    size = 3 * module.WORDS + 5
    weights = torch.zeros(8 * size + 3, dtype=torch.uint8)
    whole = hash_of(weights)
    seen = {whole}
    for index in (0, 8 * module.WORDS - 1, 8 * module.WORDS, 8 * size - 1, 8 * size, 8 * size + 2):
        weights[index] = 1
        seen.add(hash_of(weights))
        weights[index] = 0
    assert len(seen) == 7
    assert hash_of(weights[1:].clone()) == hash_of(weights[1:]) != hash_of(weights)


def test_the_sign_of_each_word_counts() -> None:
    """An even factor would lose the highest bit of a word."""
    words = torch.arange(1, 9)
    for index in range(len(words)):
        other = words.clone()
        other[index] += torch.iinfo(torch.int64).min
        assert hash_of(other) != hash_of(words), index


def test_signs_that_change_in_pairs_do_not_cancel_out() -> None:
    weights = torch.arange(1.0, 17.0)
    changed = weights.clone()
    changed[[1, 5]] *= -1  # the topmost bits of two words
    assert weights_hash([("a", weights)]) != weights_hash([("a", changed)])


def test_hashes_are_those_of_earlier_checkpoints() -> None:
    """Another hash would refuse a base whose weights have not changed."""
    named = [("a", torch.arange(10.0)), ("b.c", torch.arange(21, dtype=torch.int16).view(3, 7))]
    small = "780f992f38d6cea1f26eebb21bc6d56ea39a61b6cd7640dfc04f60e8ef16f6a8"
    assert weights_hash(named) == small
    large = "5acef5cc163d51b0eb68bf9c4e341e2c983346f7eab473aba94f1ecaf9af968c"
    assert hash_of(torch.arange((1 << 20) + 2)) == large
