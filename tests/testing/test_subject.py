"""What the checks look at: a small, uneven sample, and a model that is put back bit for bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.testing.parameter_checks import take_steps
from infrastructure.testing.subject import (
    MAX_TOKENS,
    NUM_EXAMPLES,
    Subject,
    disable_randomness,
    fingerprints,
    kept_values,
    preserve_subject,
    shortened,
    stride_for,
    undone,
    unsupervised,
)
from tests.testing.check_models import save_model_of, settings_of, subject_of


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("gpt2")
    model = {"name": str(save_model_of("gpt2", folder / "model"))}
    return subject_of(DeploymentConfig(**settings_of(folder, model)))


def example(num_tokens: int, first_learnt: int, last_learnt: int) -> TokenizedExample:
    mask = np.zeros(num_tokens, dtype=bool)
    mask[first_learnt : last_learnt + 1] = True
    return TokenizedExample(np.arange(num_tokens, dtype=np.int32), mask)


def test_a_long_example_is_cut_to_what_is_learnt() -> None:
    cut = shortened(example(100, 80, 89), 20)
    assert cut.input_ids.tolist() == list(range(70, 90))
    assert np.flatnonzero(cut.supervised).tolist() == list(range(10, 20))
    assert not shortened(example(100, 1, 99), 20).supervised[0]
    assert np.flatnonzero(shortened(example(100, 5, 9), 20).supervised).tolist() == [*range(5, 10)]
    for whole in (
        example(20, 3, 8),
        replace(example(100, 80, 89), pictures=(b"a picture",)),
        example(100, 1, 0),
    ):
        assert shortened(whole, 20) is whole


def test_examples_are_made_uneven_and_keep_one_learnt_token() -> None:
    for num_masked, trained in ((0, [4, 5, 6]), (2, [6]), (3, [6])):
        uneven = unsupervised(given := example(10, 4, 6), num_masked)
        assert np.flatnonzero(uneven.supervised).tolist() == trained
        assert given.supervised.sum() == 3


def test_the_sample_is_small_and_uneven(given: Subject) -> None:
    assert 2 <= len(given.sample) <= NUM_EXAMPLES
    assert sum(len(one.input_ids) for one in given.sample) <= MAX_TOKENS
    lengths = [len(one.input_ids) for one in given.sample]
    everyone = [len(one.input_ids) for one in given.candidates]
    assert lengths == sorted(lengths)
    assert (len(everyone), lengths[0], lengths[-1]) == (32, min(everyone), max(everyone))
    learnt = [int(one.supervised.sum()) for one in given.uneven_sample]
    assert learnt != [int(one.supervised.sum()) for one in given.sample]


def test_large_tensors_are_compared_in_part() -> None:
    assert stride_for([1000]) == 1
    assert [stride_for(sizes) for sizes in ([], [10**7] * 2, [10**7, 10**7 + 1])] == [1, 1, 2]
    assert stride_for([10**9, 10**9]) == 100
    assert kept_values(torch.arange(10), 4).tolist() == [0, 4, 8]


def test_a_fingerprint_sees_one_bit(given: Subject) -> None:
    tensor = torch.rand(1000).to(torch.bfloat16)
    before = fingerprints(iter([("w", tensor)]))
    tensor.view(torch.int16)[17] ^= 1
    assert fingerprints(iter([("w", tensor)])) != before


def state_of(subject: Subject) -> dict[str, Any]:
    model = subject.model
    return {
        "weights": {n: t.detach().clone() for n, t in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "random": torch.get_rng_state(),
        "gradients": [n for n, p in model.named_parameters() if p.grad is not None],
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert all(torch.equal(found["weights"][n], t) for n, t in expected["weights"].items())
    assert found["modes"] == expected["modes"]
    assert torch.equal(found["random"], expected["random"])
    assert found["gradients"] == expected["gradients"] == []


def test_steps_are_undone_bit_for_bit(given: Subject) -> None:
    before = state_of(given)
    with undone(given):
        disable_randomness(given)
        take_steps(given, 2, 0.05)
        torch.rand(3)
        changed = given.model.state_dict()
        assert any(not torch.equal(changed[n], t) for n, t in before["weights"].items())
    assert_same(state_of(given), before)


def test_they_are_undone_when_something_raises(given: Subject) -> None:
    before = state_of(given)
    with pytest.raises(RuntimeError, match="in the middle"):
        steps_that_raise(given)
    assert_same(state_of(given), before)


def steps_that_raise(subject: Subject) -> None:
    with undone(subject):
        take_steps(subject, 1, 0.05)
        raise RuntimeError("in the middle")


def test_gradients_leave_no_trace(given: Subject) -> None:
    before = state_of(given)
    with preserve_subject(given):
        found = given.gradients(given.sample, 1)
    assert found.missing == found.not_finite == ()
    assert all(bool(value.any()) for value in found.values.values())
    assert_same(state_of(given), before)


def test_a_gradient_with_one_number_that_is_not_finite_is_named(given: Subject) -> None:
    parameters = dict(given.model.named_parameters())
    (name, parameter), *_, (missing, _) = parameters.items()
    try:
        for each in parameters.values():
            each.grad = torch.zeros_like(each)
        parameters[missing].grad = None
        parameter.grad.view(-1)[1] = float("nan")  # type: ignore[union-attr]
        found = given._read_gradients()
    finally:
        given.model.zero_grad()
    assert (found.not_finite, found.missing) == ((name,), (missing,))
