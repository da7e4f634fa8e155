"""Losses and metrics of single tokens that somebody wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models.token_functions import (
    LOSSES,
    METRICS,
    MetricSums,
    TokenFunctionError,
    checked,
    cross_entropy,
    metrics_by_key,
    own_loss,
    register_loss,
    register_metric,
    token_accuracy,
)
from infrastructure.models.token_loss import TokenLoss
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.forward.evaluation_loss import EvaluationLoss
from tests.features.specification.test_context import configure
from tests.models.architectures import tiny_model
from tests.models.test_token_loss import padded_batch


def focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Lin et al. 2017 (arXiv 1708.02002), gamma 2."""
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


def accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(dim=-1) == targets).float()


def mean(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_loss("focal", focal)
    register_loss("mean", mean)
    register_metric("accuracy", accuracy)
    yield
    for registry, names in ((LOSSES, ("focal", "mean")), (METRICS, ("accuracy",))):
        for name in names:
            registry.unregister(name)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "granite"])
def test_a_function_of_ones_own_gives_what_ours_gives_in_each_way_to_the_loss(
    architecture: str,
) -> None:
    model, batch = tiny_model(architecture), padded_batch()
    expected, count = TokenLoss()(model, batch)
    ways = {"hidden states": 0, "kept logits": 1, "all logits": 2}
    own = TokenLoss(cross_entropy)
    actual, same_count = own(model, batch)
    assert ways[str(own.method)] >= 0
    assert same_count == count
    torch.testing.assert_close(actual, expected)
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    found = torch.autograd.grad(actual, list(model.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_each_target_keeps_its_weight() -> None:
    model, batch = tiny_model("llama"), padded_batch()
    count = TokenLoss()(model, batch)[1]
    own, ours = TokenLoss(cross_entropy), TokenLoss()
    ours.prepare(model)
    rows = {"target_positions": torch.arange(count), "targets": torch.arange(count) % 7}
    weighted = {**batch, **rows, "target_weights": torch.rand(count)}
    torch.testing.assert_close(own(model, weighted)[0], ours(model, weighted)[0])


def test_one_that_is_a_mean_already_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"models\.token_function_shape\(function=loss 'mean' at .*returned=\[\], "
    ):
        TokenLoss(own_loss("mean"))(tiny_model("llama"), padded_batch())


def test_ours_is_taken_unless_somebody_has_another_of_its_name() -> None:
    assert own_loss("cross_entropy") is None
    with LOSSES.registered("cross_entropy", focal):
        assert own_loss("cross_entropy") is not None


def test_metrics_are_known_by_their_names_and_one_key_is_one_metric() -> None:
    here = f"{__name__}:accuracy"
    assert list(metrics_by_key([here])) == ["eval_accuracy"]
    with pytest.raises(ValueError, match=r"models\.metric_name_taken.*key=eval_accuracy"):
        metrics_by_key(["accuracy", here])
    with METRICS.registered("loss", accuracy), pytest.raises(ValueError, match="eval_loss"):
        metrics_by_key(["loss"])


def surprise(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A metric that is the loss."""
    return F.cross_entropy(logits, targets, reduction="none")


def trainer_of(model: Path, folder: Path, **training: Any) -> EnhancedTrainer:
    config = configure(model, folder, **training)
    config.data.validation_split = 0.4
    return EnhancedTrainer(config.model, config.training, config.data, device="cpu")


def test_training_and_held_out_data_have_ones_own_loss(saved_llama: Path, tmp_path: Path) -> None:
    ours, own = (trainer_of(saved_llama, tmp_path, loss=n) for n in ("cross_entropy", "focal"))
    assert own.evaluate()["eval_loss"] < ours.evaluate()["eval_loss"]
    assert own.train().metrics["loss"] != ours.train().metrics["loss"]


def test_a_metric_is_the_mean_over_held_out_tokens_however_they_are_split(
    saved_llama: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(saved_llama, tmp_path, metrics=["accuracy", f"{__name__}:surprise"])
    model, data = trainer.initialize_model(), trainer.initialize_data()
    found = trainer.evaluate()
    assert 0 <= found["eval_accuracy"] <= 1
    assert found["eval_surprise"] == pytest.approx(found["eval_loss"], rel=1e-4)
    for size in (1, 3):
        measured = EvaluationLoss(model, trainer.adapter, trainer.precision)
        again = measured.measure(data.evaluation_batches(size))
        assert again["eval_accuracy"] == pytest.approx(found["eval_accuracy"])
    right = total = 0
    for examples in data.evaluation_batches(1):
        batch = trainer.adapter.prepare_batch(examples)
        with torch.no_grad():
            logits = model(input_ids=torch.as_tensor(examples[0].input_ids).long()[None]).logits[0]
        places = torch.as_tensor(examples[0].supervised[1:])
        chosen = logits[:-1].argmax(dim=-1)[places]
        right += int((chosen == batch["targets"]).sum())
        total += int(places.sum())
    assert found["eval_accuracy"] == pytest.approx(right / total)


@pytest.mark.parametrize("setting", [{"loss": "focal"}, {"metrics": ["accuracy"]}])
def test_a_model_that_computes_its_own_loss_refuses_them(setting: dict[str, Any]) -> None:
    model = ModelConfig(name="tactical_mappo")
    with pytest.raises(
        ValueError, match=r"models\.token_function_no_effect.*adapter=TacticalMappoAdapter"
    ):
        EnhancedTrainer(model, TrainingConfig(**setting), configure_nothing(), device="cpu")


def configure_nothing() -> Any:
    from infrastructure.config.sections.data_config import DataConfig

    return DataConfig()


def test_results_that_cannot_be_summed_are_named() -> None:
    logits, targets = torch.zeros(3, 5, requires_grad=True), torch.tensor([0, 1, 2])
    for returned, shown in (
        (lambda logits, targets: 7, "returned=int, count=3, expected=[3])"),
        (lambda logits, targets: logits, "returned=[3, 5], count=3, expected=[3])"),
    ):
        with pytest.raises(TokenFunctionError, match="token_function_shape") as refused:
            checked("metric 'm'", returned)(logits, targets)
        assert str(refused.value).startswith("models.token_function_shape(function=metric 'm' at ")
        assert str(refused.value).endswith(shown)


def test_a_loss_needs_a_gradient_where_one_is_computed() -> None:
    def flat(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(targets))

    targets = torch.tensor([0, 1])
    learns, frozen = torch.zeros(2, 5, requires_grad=True), torch.zeros(2, 5)
    loss = checked("loss 'l'", flat, is_trained_on=True)
    with pytest.raises(ValueError, match=r"loss_without_gradient\(function=loss 'l' at .*:\d+"):
        loss(learns, targets)
    assert loss(frozen, targets).tolist() == checked("m", flat)(learns, targets).tolist() == [1, 1]
    with torch.no_grad():
        loss(learns, targets)
    trained = checked("loss", cross_entropy, is_trained_on=True)(learns, targets)
    assert trained.requires_grad


def test_sums_of_metrics_grow_with_each_call() -> None:
    sums = MetricSums({"a": token_accuracy, "n": lambda logits, targets: targets.float()})
    logits = torch.eye(4)
    assert sums(logits, torch.tensor([0, 1, 3, 2])).tolist() == [0.0] * 4
    assert sums(logits[:1], torch.tensor([0])).dtype is torch.float32
    assert (sums.sums, sums.count) == ({"a": 3.0, "n": 6.0}, 5)


def test_a_metric_whose_name_is_taken_is_named() -> None:
    refused = pytest.raises(ValueError, match=r"taken\(name=loss, key=eval_loss\)")
    with METRICS.registered("loss", accuracy), refused:
        metrics_by_key(["loss"])
    assert [*metrics_by_key(["token_accuracy", "accuracy"])] == [
        "eval_token_accuracy",
        "eval_accuracy",
    ]
    assert metrics_by_key([]) == {}
