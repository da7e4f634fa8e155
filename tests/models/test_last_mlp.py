"""The last MLP at learnt tokens only: the same loss and gradients, and only where nobody minds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infrastructure.models import last_mlp, token_loss
from infrastructure.models.chunked_loss import with_rows
from infrastructure.models.packed_attention import use_packed_attention
from infrastructure.models.packing_check import pack_rows
from infrastructure.models.token_loss import TokenLoss
from infrastructure.optimization.size_grid import SizeGrid
from tests.models.architectures import VOCAB_SIZE, gradients, tiny_model
from tests.slow import slow

NARROWING = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
LENGTHS = (13, 8, 16)
NUM_LEARNT = 9


def answers_only(packed: bool) -> dict[str, Any]:
    """Three rows; of each, the last 3 tokens are learnt."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCAB_SIZE, (n,), generator=draw) for n in LENGTHS]
    labels = [torch.full_like(row, -100) for row in rows]
    for row, label in zip(rows, labels, strict=True):
        label[-3:] = row[-3:]
    if packed:
        return {**pack_rows(rows), "labels": torch.cat(labels)[None]}
    padded = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": padded(rows, batch_first=True),
        "labels": padded(labels, batch_first=True, padding_value=-100),
        "attention_mask": padded([torch.ones_like(row) for row in rows], batch_first=True),
    }


def computed(model: Any, batch: dict[str, Any], grid: SizeGrid = SizeGrid.EXACT) -> dict[str, Any]:
    """Loss and gradients, by name."""
    loss_sum, _ = TokenLoss()(model, batch, grid)
    model.zero_grad()
    loss_sum.backward()
    return {"loss": loss_sum.detach(), **gradients(model)}


def whole(monkeypatch: pytest.MonkeyPatch, *given: Any) -> dict[str, Any]:
    """The same, of an MLP that computes all positions."""
    with monkeypatch.context() as patch:
        patch.setattr(token_loss, "may_narrow_last_mlp", lambda _model: False)
        return computed(*given)


@pytest.fixture
def num_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each forward pass of a narrowed MLP."""
    counted: list[int] = []

    def counting(part: torch.Tensor, num_rows: int) -> torch.Tensor:
        counted.append(num_rows)
        return with_rows(part, num_rows)

    monkeypatch.setattr(last_mlp, "with_rows", counting)
    return counted


def assert_close(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = tensor.abs().max().clamp_min(1e-3)
        assert (actual[name] - tensor).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("architecture", NARROWING)
def test_loss_and_gradients_are_those_of_all_positions(
    architecture: str,
    packed: bool,
    dtype: torch.dtype,
    num_rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = tiny_model(architecture), answers_only(packed)
    if packed:
        assert use_packed_attention(model)
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        actual = computed(model, batch, SizeGrid.EIGHTHS)
        assert num_rows[-1] == SizeGrid.EIGHTHS.rows_up(NUM_LEARNT)
        del num_rows[:]
        expected = whole(monkeypatch, model, batch, SizeGrid.EIGHTHS)
    assert not num_rows
    assert_close(actual, expected, 2e-6 if dtype is torch.float32 else 1e-2)


def test_lora_of_the_mlp(num_rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import LoraConfig, get_peft_model

    modules = ["q_proj", "gate_proj", "down_proj"]
    lora = LoraConfig(target_modules=modules, r=4, init_lora_weights=False)
    model, batch = get_peft_model(tiny_model("llama"), lora), answers_only(True)
    assert use_packed_attention(model)
    actual = computed(model, batch)
    assert num_rows[-1] == NUM_LEARNT
    assert_close(actual, whole(monkeypatch, model, batch), 2e-6)
    lora.lora_dropout = 0.1
    dropping = get_peft_model(tiny_model("llama"), lora)
    assert last_mlp.last_mlp(dropping) is None, "dropout would draw other numbers"


def test_a_few_positions_in_an_evaluation(num_rows: list[int]) -> None:
    model, batch = tiny_model("llama").eval(), answers_only(False)
    with torch.no_grad():
        TokenLoss()(model, batch)
    assert num_rows[-1] == NUM_LEARNT


@pytest.mark.parametrize("first", [0, None], ids=["all", "none"])
def test_where_all_tokens_or_none_are_learnt(first: int | None, num_rows: list[int]) -> None:
    model, ids = tiny_model("llama"), answers_only(True)["input_ids"]
    labels = ids.clone() if first == 0 else torch.full_like(ids, -100)
    loss = TokenLoss()
    loss.prepare(model)
    del num_rows[:]
    loss(model, {"input_ids": ids, "labels": labels}, SizeGrid.SIXTEENTHS)
    assert not num_rows


def watched(model: Any) -> None:
    model.model.layers[-1].mlp.down_proj.register_forward_hook(lambda *_: None)


def watched_layer(model: Any) -> None:
    model.model.layers[-1].register_forward_hook(lambda *_: None)


def computed_twice(model: Any) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False})


def compiled(model: Any) -> None:
    model.model.compile(backend="eager")


def replaced(model: Any) -> None:
    mlp = model.model.layers[-1].mlp
    mlp.forward = mlp.forward


def with_another_product(model: Any) -> None:
    class Own(torch.nn.Linear):
        pass

    model.model.layers[-1].mlp.up_proj.__class__ = Own


@pytest.mark.parametrize(
    "change",
    [
        *(watched, watched_layer, computed_twice, replaced, with_another_product),
        pytest.param(compiled, marks=slow),  # imports the compiler, for seconds
    ],
    ids=lambda change: change.__name__,
)
def test_all_positions_where_somebody_minds(
    change: Callable[[Any], None], num_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that comes after the model was measured."""
    model, batch, loss = tiny_model("llama").train(), answers_only(False), TokenLoss()
    loss.prepare(model)
    assert loss.last_mlp(model) is model.model.layers[-1].mlp
    expected = whole(monkeypatch, model, batch)
    change(model)
    assert loss.last_mlp(model) is None
    del num_rows[:]
    loss_sum, _ = loss(model, batch)
    loss_sum.backward()
    assert not num_rows
    assert_close({"loss": loss_sum.detach(), **gradients(model)}, expected, 2e-6)


def test_all_positions_where_the_model_is_compiled() -> None:
    """As `compile` leaves it, without the import of the compiler."""
    model, loss = tiny_model("llama").train(), TokenLoss()
    loss.prepare(model)
    model.model._compiled_call_impl = model.model.forward  # type: ignore[union-attr, assignment]
    assert loss.last_mlp(model) is None


def test_an_mlp_that_looks_at_other_positions_is_measured(num_rows: list[int]) -> None:
    model: Any = tiny_model("llama")

    class Mixing(type(model.model.layers[-1].mlp)):  # type: ignore[misc]
        def forward(self, given: torch.Tensor) -> Any:
            return super().forward(given - given.mean(dim=1, keepdim=True))

    model.model.layers[-1].mlp.__class__ = Mixing
    loss = TokenLoss()
    loss.prepare(model)
    assert num_rows == [4], "it was tried at every other position"
    assert not loss.narrows_last_mlp
    assert loss.last_mlp(model) is None


def test_no_hook_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor after an error."""
    model, batch = tiny_model("llama"), answers_only(False)
    loss = TokenLoss()
    loss.prepare(model)

    def failing(*_: Any) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setitem(token_loss.METHODS, token_loss.FASTEST, failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss(model, batch)
    assert loss.last_mlp(model) is not None


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_each_kind_of_hook_makes_a_part_special(register: str) -> None:
    plain = torch.nn.Linear(1, 1)
    assert not last_mlp.is_special(plain)
    handle = getattr(plain, register)(lambda *_: None)
    assert last_mlp.is_special(plain)
    handle.remove()
    assert not last_mlp.is_special(plain)
    assert [last_mlp.is_special(torch.nn.Dropout(share)) for share in (0.0, 0.1)] == [False, True]


def test_a_model_without_layers_or_sharded_has_no_last_mlp() -> None:
    assert last_mlp.last_mlp(torch.nn.Linear(1, 1)) is None
    assert last_mlp.last_mlp(tiny_model("gpt2")) is None, "another structure"
    model = tiny_model("llama")
    assert last_mlp.last_mlp(model) is model.model.layers[-1].mlp
    model.in_forward = lambda compute, *given: compute(*given)
    assert last_mlp.last_mlp(model) is None


@pytest.mark.parametrize(
    ("num_positions", "grid", "is_narrowed"),
    [
        (0, SizeGrid.EXACT, False),
        (1, SizeGrid.EXACT, True),
        (39, SizeGrid.EXACT, True),
        (40, SizeGrid.EXACT, False),
        (31, SizeGrid.EIGHTHS, True),
        (33, SizeGrid.EIGHTHS, False),  # 40 rows would be computed
    ],
)
def test_an_mlp_is_narrowed_if_that_saves_rows(
    num_positions: int, grid: SizeGrid, is_narrowed: bool
) -> None:
    mlp = torch.nn.Linear(2, 2)
    positions = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:num_positions]
    given = torch.randn(4, 10, 2)
    whole_output = mlp(given)
    with last_mlp.mlp_at(mlp, positions, 40, grid):
        assert bool(mlp._forward_hooks) is is_narrowed
        output = mlp(given)
    computed_at = output.flatten(0, 1).any(dim=-1)
    if is_narrowed:
        assert sorted(positions.tolist()) == computed_at.nonzero().flatten().tolist()
    picked = (tensor.flatten(0, 1)[positions] for tensor in (output, whole_output))
    torch.testing.assert_close(*picked)
    assert output.shape == given.shape
    assert computed_at.all() or is_narrowed


def test_an_mlp_that_takes_whole_rows_only_is_not_narrowed() -> None:
    model: Any = tiny_model("llama")

    class Picky(type(model.model.layers[-1].mlp)):  # type: ignore[misc]
        def forward(self, given: torch.Tensor) -> Any:
            if given.shape[1] != token_loss.NUM_PROBE_TOKENS:
                raise ValueError("not a whole row")
            return super().forward(given)

    assert token_loss.may_narrow_last_mlp(model)
    model.model.layers[-1].mlp.__class__ = Picky
    assert not token_loss.may_narrow_last_mlp(model)
