"""Every model gets its own loss, by the fastest method that a probe finds right."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from infrastructure.models import token_loss
from infrastructure.models.token_functions import token_accuracy
from infrastructure.models.token_loss import TokenLoss, backbone, supervised_targets
from infrastructure.optimization.size_grid import SizeGrid
from tests.models.architectures import ARCHITECTURES, VOCAB_SIZE, gradients, tiny_model

METHODS = {
    "llama4": "kept logits",
    "gemma2": "kept logits",  # caps its logits
    "granite": "kept logits",  # scales them
    "cohere": "kept logits",
    "qwen3_moe_balanced": "all logits",  # adds a balancing loss
}


def padded_batch() -> dict[str, torch.Tensor]:
    """Two rows of 12 and 8 tokens; a few of them supervised."""
    ids = torch.randint(3, VOCAB_SIZE, (2, 12), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, :5] = labels[1, :3] = labels[1, 8:] = -100
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_targets_are_predicted_from_the_token_before() -> None:
    labels = torch.tensor([[7, -100, 5, 6], [-100, 8, -100, 9]])
    before = labels.clone()
    positions, targets = supervised_targets(labels)
    assert positions.tolist() == [1, 2, 4, 6]
    assert targets.tolist() == [5, 6, 8, 9]
    assert torch.equal(labels, before)


def test_no_example_of_a_packed_row_continues_the_one_before() -> None:
    labels = torch.tensor([[1, 2, 3, 4, 5]])
    positions, targets = supervised_targets(labels, torch.tensor([0, 2, 5], dtype=torch.int32))
    assert positions.tolist() == [0, 2, 3]
    assert targets.tolist() == [2, 4, 5]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradients_are_those_of_transformers(architecture: str) -> None:
    model, batch, token_loss = tiny_model(architecture), padded_batch(), TokenLoss()
    loss_sum, num_items = token_loss(model, batch)
    loss_sum.backward()
    actual = gradients(model)
    (model(**batch, use_cache=False).loss * num_items).backward()
    expected = gradients(model)
    assert token_loss.method == METHODS.get(architecture, "hidden states")
    assert num_items == 12
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp_min(1e-3)
        assert (actual[name] - gradient).abs().max() <= 2e-6 * scale, name


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3_moe_balanced"])
def test_targets_may_have_weights(architecture: str) -> None:
    """By each of the three methods, value and gradients are those of the model's own logits."""
    model, batch, token_loss = tiny_model(architecture), padded_batch(), TokenLoss()
    labels = batch.pop("labels")
    positions, targets = supervised_targets(labels)
    weights = torch.linspace(0.0, 6.0, len(targets))
    given = {"target_positions": positions, "targets": targets, "target_weights": weights}
    loss_sum, num_items = token_loss(model, batch | given)
    loss_sum.backward()
    actual = gradients(model)
    output = model(**batch, use_cache=False)
    losses = F.cross_entropy(output.logits.flatten(0, 1)[positions], targets, reduction="none")
    expected = (weights * losses).sum()
    if getattr(output, "aux_loss", None) is not None:
        expected = expected + model.config.router_aux_loss_coef * output.aux_loss * weights.sum()
    expected.backward()
    assert token_loss.method == METHODS.get(architecture, "hidden states")
    assert num_items == 12
    torch.testing.assert_close(loss_sum, expected, rtol=1e-6, atol=0)
    for name, gradient in gradients(model).items():
        scale = gradient.abs().max().clamp_min(1e-3)
        assert (actual[name] - gradient).abs().max() <= 2e-6 * scale, name


def test_a_batch_may_be_split_and_carry_its_targets() -> None:
    model, batch, token_loss = tiny_model("llama"), padded_batch(), TokenLoss()
    whole, num_items = token_loss(model, batch)
    rows = [{name: value[row : row + 1] for name, value in batch.items()} for row in (0, 1)]
    parts = []
    for row in rows:
        row["target_positions"], row["targets"] = supervised_targets(row.pop("labels"))
        parts.append(token_loss(model, row))
    assert sum(n for _, n in parts) == num_items
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole, rtol=1e-6, atol=0)


def test_nothing_supervised_is_zero() -> None:
    model, batch = tiny_model("llama"), padded_batch()
    batch["labels"].fill_(-100)
    loss_sum, num_items = TokenLoss()(model, batch)
    loss_sum.backward()
    assert (loss_sum.item(), num_items) == (0.0, 0)
    assert not model.lm_head.weight.grad.any()


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_under_autocast_the_sum_is_fp32(architecture: str) -> None:
    model, batch = tiny_model(architecture), padded_batch()
    expected, _ = TokenLoss()(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_sum, _ = TokenLoss()(model, batch)
    loss_sum.backward()
    assert loss_sum.dtype == model.lm_head.weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss_sum, expected, rtol=3e-2, atol=0)


def test_a_cap_is_found_before_it_does_anything() -> None:
    """At such weights the capped and the plain loss agree to the last digit."""
    model, batch, token_loss = tiny_model("gemma2", torch.bfloat16), padded_batch(), TokenLoss()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-3)
    token_loss(model, batch)
    assert token_loss.method == "kept logits"


def test_a_method_whose_loss_is_another_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where nothing in the structure of the model forbids it."""

    def doubled(*given: Any) -> torch.Tensor:
        return 2 * token_loss.loss_from_all_logits(*given)

    monkeypatch.setitem(token_loss.METHODS, "hidden states", doubled)
    assert token_loss.choose_method(tiny_model("llama")) == "kept logits"


def test_the_probe_leaves_no_trace() -> None:
    model, batch = tiny_model("gpt2"), padded_batch()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    with torch.no_grad():
        TokenLoss()(model, batch)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in model.modules()] == modes
    assert not gradients(model)
    assert not model.lm_head._forward_hooks


class BigramModel(torch.nn.Module):
    """A model of one's own: no keyword arguments but the ids, any form of output."""

    def __init__(self, form: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=generator))
        self.form = form

    def forward(self, ids: torch.Tensor) -> Any:
        logits = self.table[ids]
        forms: dict[str, Any] = {
            "tensor": logits,
            "tuple": (logits, None),
            "dict": {"logits": logits},
            "loss": {"loss": logits.sum()},
            "cut": logits[:, 1:],
        }
        return forms[self.form]


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_any_module_that_gives_logits_will_do(form: str) -> None:
    model, batch, token_loss = BigramModel(form), padded_batch(), TokenLoss()
    loss_sum, _ = token_loss(model, batch)
    logits = model.table[batch["input_ids"]][:, :-1].flatten(0, 1)
    expected = F.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(loss_sum, expected, rtol=1e-6, atol=0)
    assert token_loss.method == "all logits"


@pytest.mark.parametrize(
    ("form", "message"),
    [("loss", "models.forward_returns_no_logits"), ("cut", "models.logits_shape_mismatch")],
)
def test_a_model_whose_logits_are_unknown_is_refused(form: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenLoss()(BigramModel(form), padded_batch())


@pytest.mark.parametrize("target_modules", [["q_proj", "down_proj"], ["q_proj", "lm_head"]])
def test_lora(target_modules: list[str]) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=target_modules, r=4, init_lora_weights=False)
    model, batch, token_loss = (
        get_peft_model(tiny_model("llama"), config),
        padded_batch(),
        TokenLoss(),
    )
    loss_sum, num_items = token_loss(model, batch)
    loss_sum.backward()
    actual = gradients(model)
    (model(**batch).loss * num_items).backward()
    expected = gradients(model)
    assert token_loss.method == "hidden states"
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_is_seen_through() -> None:
    model, batch, token_loss = tiny_model("llama"), padded_batch(), TokenLoss()
    expected, _ = TokenLoss()(model, batch)
    loss_sum, _ = token_loss(torch.compile(model, backend="eager"), batch)
    assert token_loss.method == "hidden states"
    torch.testing.assert_close(loss_sum, expected)


def test_the_part_below_the_head_is_a_module_of_its_own() -> None:
    model: Any = tiny_model("llama")
    assert backbone(model) is model.model
    assert backbone(model.model) is None, "a bare decoder is its own base"
    other: Any = torch.nn.Linear(2, 2)
    other.base_model = "a name"
    assert backbone(other) is None


def test_a_method_whose_loss_is_the_models_own_is_taken_whatever_is_tolerated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_loss, "tolerance", lambda dtype: 0.0)
    monkeypatch.setitem(token_loss.METHODS, "hidden states", token_loss.loss_from_all_logits)
    assert token_loss.choose_method(tiny_model("llama")) == "hidden states"


class Headed(torch.nn.Module):
    """A decoder with a head on it, as transformers has them, changed in one way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way = tiny_model("llama"), way
        self.base_model, self.config = self.inner.model, self.inner.config
        self.norm = torch.nn.RMSNorm(32)

    def get_output_embeddings(self) -> Any:
        return None if self.way == "headless" else self.inner.lm_head

    def forward(self, input_ids: torch.Tensor) -> Any:
        hidden = self.base_model(input_ids=input_ids)[0]
        head = self.inner.lm_head
        if self.way == "twice":
            return head(hidden) + 0 * head(hidden)
        if self.way == "scaled":
            return 0.5 * head(hidden)
        return head(2 * hidden if self.way == "other" else hidden)


@pytest.mark.parametrize(
    ("way", "is_plain"),
    [("plain", True), ("headless", False), ("twice", False), ("scaled", False), ("other", False)],
)
def test_logits_that_are_not_those_of_the_head_are_found(way: str, is_plain: bool) -> None:
    model = Headed(way)
    arguments = {"input_ids": torch.arange(3, 9).unsqueeze(0)}
    with torch.no_grad():
        assert token_loss.fits("hidden states", model, arguments) is is_plain
        assert not token_loss.fits("kept logits", model, arguments)
    assert token_loss.choose_method(model) == ("hidden states" if is_plain else "all logits")
    assert not model.inner.lm_head._forward_hooks


def test_a_balancing_loss_needs_all_logits() -> None:
    arguments = {"input_ids": torch.arange(3, 9).unsqueeze(0)}
    for architecture, balances in (("qwen3_moe_balanced", True), ("qwen3_moe", False)):
        model = tiny_model(architecture)
        for method in ("hidden states", "kept logits"):
            with torch.no_grad():
                assert token_loss.fits(method, model, arguments) is not balances
        chosen = TokenLoss()
        chosen.prepare(model)
        assert chosen.balances is balances
        assert chosen.method == ("all logits" if balances else "hidden states")


def test_metrics_are_summed_over_targets_without_their_weights() -> None:
    model, batch = tiny_model("llama"), padded_batch()
    positions, targets = supervised_targets(batch.pop("labels"))
    given = {"target_positions": positions, "targets": targets}
    own = TokenLoss()
    metrics = {"n": lambda logits, targets: targets.float(), "one": token_accuracy}
    found = own.metric_sums(model, {**batch, **given, "target_weights": torch.zeros(12)}, metrics)
    assert found["n"] == (float(targets.sum()), 12)
    chosen = model.eval()(**batch).logits.flatten(0, 1)[positions].argmax(dim=-1)
    assert found["one"] == (float((chosen == targets).sum()), 12)


def test_a_model_is_tested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, tested = TokenLoss(), list[object]()
    assert (own.method, own.balances, own.narrows_last_mlp) == (None, False, False)
    choose = token_loss.choose_method
    monkeypatch.setattr(token_loss, "choose_method", lambda m: tested.append(m) or choose(m))
    model = Headed("scaled")
    own.prepare(model)
    own.prepare(model)
    assert tested == [model]
    assert own.method == "all logits"
    shown = r"logits_shape_mismatch\(logits_shape=\(1, 7, 97\), input_shape=\(1, 8\)\)"
    with pytest.raises(ValueError, match=shown):
        TokenLoss().prepare(BigramModel("cut"))


def test_kept_logits_are_those_of_few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the grid rounds to; the added ones repeat the last and do not count."""
    model, batch = tiny_model("gemma2"), padded_batch()
    kept: list[list[int]] = []
    call = token_loss.call_model

    def noting(called: Any, arguments: Any) -> Any:
        kept.extend([arguments["logits_to_keep"].tolist()] * ("logits_to_keep" in arguments))
        return call(called, arguments)

    expected, _ = TokenLoss()(model, batch)
    own = TokenLoss()
    own.prepare(model)
    monkeypatch.setattr(token_loss, "call_model", noting)
    found, _ = own(model, batch, SizeGrid.EIGHTHS)
    columns = [*range(2, 11)]
    num_rows = SizeGrid.EIGHTHS.rows_up(len(columns))
    assert kept == [columns + [10] * (num_rows - len(columns))]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_dropout_does_not_disturb_the_probe() -> None:
    for model in (
        tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5),
        tiny_model("llama", attention_dropout=0.5),
    ):
        assert token_loss.choose_method(model) == "hidden states"
    assert token_loss.may_narrow_last_mlp(model)
