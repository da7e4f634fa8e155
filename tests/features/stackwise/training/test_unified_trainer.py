"""UnifiedTrainer: layers or a model that one has already, through the same loop and phases."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from infrastructure.core.errors import CheckpointError
from infrastructure.data.serving.example_order import epoch_order
from infrastructure.features.stackwise.training.unified_trainer import (
    TrainingConfig,
    UnifiedTrainer,
    rows_of,
)
from infrastructure.models.model_inputs import attention_implementation
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook
from tests.features.stackwise.training.read_stacks import load_stacks
from tests.models.architectures import VOCAB_SIZE, tiny_model
from tests.slow import slow_but

WIDTH, LAYERS, CLASSES = 8, 4, 5
LAST_TOKEN = VOCAB_SIZE - 1


class Block(torch.nn.Module):
    """A layer with a residual connection, and dropout."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.dropout(torch.tanh(self.inner(hidden)))


def blocks(count: int = LAYERS) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [Block() for _ in range(count)]


def configured(**settings: Any) -> TrainingConfig:
    values = {"num_epochs": 2, "learning_rate": 1e-2, "warmup_steps": 1}
    if settings.keys().isdisjoint({"mode", "strategy"}):
        values |= {"mode": "blockwise", "block_size": 2}
    return TrainingConfig(**{**values, **settings})


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def token_ids(rows: int = 12, length: int = 10) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, LAST_TOKEN, (rows, length), generator=generator)


def llama() -> Any:
    return tiny_model("llama", num_hidden_layers=LAYERS)


def weights(modules: Any) -> list[torch.Tensor]:
    several = torch.nn.ModuleList(modules) if isinstance(modules, list) else modules
    return [tensor.clone() for tensor in several.state_dict().values()]


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


class Watching(Hook):
    """Keeps losses and batches, as the model of `trainer` is given them; breaks the training off
    after a step."""

    name = "watching"

    def __init__(self, broken_after: int | None = None) -> None:
        self.broken_after = broken_after
        self.trainer: UnifiedTrainer | None = None
        self.losses: list[float] = []
        self.batches: list[Any] = []

    def after_loss(self, state: TrainingState) -> None:
        if self.trainer is not None and self.trainer.trainer is not None:
            self.batches.append(self.trainer.trainer.adapter.prepare_batch(state.batch))

    def step_end(self, state: TrainingState) -> None:
        self.losses.append(state.loss)
        if state.step == self.broken_after:
            raise KeyboardInterrupt


# a list of layers


def test_a_list_of_layers_trains_from_a_data_loader_unit_by_unit() -> None:
    """Rows with targets; in the order of our seed, not of PyTorch's random numbers."""
    inputs, targets = random(12, WIDTH), random(12, WIDTH, seed=1)
    results = []
    for chance in (1, 2):
        layers, watching = blocks(), Watching()
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
        torch.manual_seed(chance)
        trainer = watching.trainer = UnifiedTrainer(configured(seed=5), hooks=[watching])
        state = trainer.train_all_layers(loader, layers)
        assert state.step == 2 * 2 * 3
        order = epoch_order(12, 5, 0).tolist()
        assert torch.equal(watching.batches[0]["inputs"], inputs[order[:4]])
        assert torch.equal(watching.batches[0]["targets"], targets[order[:4]])
        results.append((watching.losses, weights(layers)))
    assert results[0][0] == results[1][0]
    assert are_equal(results[0][1], results[1][1])


def test_it_learns() -> None:
    inputs = random(64, WIDTH)
    targets = inputs.roll(1, dims=1) * 0.5
    watching = Watching()
    config = configured(mode="layerwise", num_epochs=20, scheduler_type="constant")
    UnifiedTrainer(config, hooks=[watching]).train_all_layers([(inputs, targets)], blocks())
    assert len(watching.losses) == LAYERS * 20
    ends = watching.losses[19::20]
    assert ends == sorted(ends, reverse=True)  # each layer makes it better
    assert ends[-1] < 0.5 * watching.losses[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda parts: parts,
        lambda parts: tuple(parts),
        torch.nn.ModuleList,
        lambda parts: torch.nn.Sequential(*parts),
    ],
    ids=["list", "tuple", "ModuleList", "Sequential"],
)
@pytest.mark.parametrize("as_generator", [False, True])
def test_layers_and_batches_may_come_in_any_form(
    make: Callable[[Any], Any], as_generator: bool
) -> None:
    batches = list(random(12, WIDTH).split(4))
    plain, given = blocks(), blocks()
    UnifiedTrainer(configured()).train_all_layers(batches, plain)
    loader = (batch for batch in batches) if as_generator else tuple(batches)
    UnifiedTrainer(configured()).train_all_layers(loader, make(given))
    assert are_equal(weights(plain), weights(given))


def test_embedding_head_and_loss_of_ones_own() -> None:
    """The embedding trains with the first unit, the head too."""
    ids, targets = token_ids(12, 6), token_ids(12, 6) % CLASSES
    embedding, head = torch.nn.Embedding(VOCAB_SIZE, WIDTH), torch.nn.Linear(WIDTH, CLASSES)
    before = weights([embedding, head])
    seen: list[tuple[int, ...]] = []

    def loss(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(output.shape))
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), wanted.flatten())

    watching, plain = Watching(), Watching()
    UnifiedTrainer(configured(), hooks=[watching]).train_all_layers(
        [{"input_ids": ids, "labels": targets}], blocks(), embedding=embedding, head=head, loss=loss
    )
    assert set(seen) == {(12, 6, CLASSES)}
    assert not any(map(torch.equal, before, weights([embedding, head])))
    torch.nn.Module.load_state_dict(embedding, {"weight": before[0]})
    head.load_state_dict({"weight": before[1], "bias": before[2]})
    UnifiedTrainer(configured(), hooks=[plain]).train_all_layers(
        [(ids, targets)], blocks(), embedding=embedding, head=head
    )
    assert plain.losses == pytest.approx(watching.losses)  # it is the default for such targets


def test_targets_that_do_not_count_have_no_influence() -> None:
    inputs, targets = random(12, WIDTH), torch.arange(12) % CLASSES
    found = []
    for noise in (0.0, 5.0):
        given = inputs + noise * (torch.arange(12) % 2)[:, None]
        marks = torch.where(torch.arange(12) % 2 == 0, targets, -100)
        layers = blocks()
        head = torch.nn.Linear(WIDTH, CLASSES)
        UnifiedTrainer(configured()).train_all_layers([(given, marks)], layers, head=head)
        found.append(weights(layers))
    assert are_equal(*found)


@pytest.mark.parametrize(
    ("layers", "batches", "more", "code"),
    [
        ([], None, {}, r"stackwise\.invalid_model_layers\(empty=an empty , type=list\)"),
        (Block(), None, {}, r"stackwise\.invalid_model_layers\(empty=, type=Block\)"),
        ("abc", None, {}, r"stackwise\.layer_not_a_module\(number=1, type=str\)"),
        ([Block(), 3], None, {}, r"stackwise\.layer_not_a_module\(number=2, type=int\)"),
        ([Block(), *[Block()] * 2], None, {}, r"stackwise\.layer_listed_twice\(number=3\)"),
        ([torch.nn.ReLU()], None, {}, "stackwise.layers_without_weights"),
        (None, [], {}, "stackwise.data_loader_empty"),
        (None, 7, {}, r"stackwise\.not_a_data_loader\(loader=of type int"),
        (None, ["text"], {}, r"stackwise\.batch_type_unknown\(batch=of type str"),
        (
            [Block(4)],
            None,
            {},
            r"layers_fail_on_batch\(failure=stackwise\.layer_fails\(number=1\), error=mat1",
        ),
        (
            None,
            None,
            {"embedding": torch.nn.Embedding(3, WIDTH)},
            r"stackwise\.layers_fail_on_batch\(failure=stackwise\.embedding_fails\(\)",
        ),
        (
            None,
            None,
            {"head": torch.nn.Linear(3, 3)},
            r"stackwise\.layers_fail_on_batch\(failure=stackwise\.head_fails\(\)",
        ),
        (
            [torch.nn.Linear(WIDTH, 4), torch.nn.Linear(4, WIDTH)],
            None,
            {},
            r"stackwise\.layer_changes_shape\(number=1, returned=\(12, 4\), shape=\(12, 8\)\)",
        ),
        (
            [torch.nn.LSTM(WIDTH, WIDTH)],
            None,
            {},
            r"stackwise\.layer_changes_shape\(number=1, returned=.*tuple",
        ),
        (
            None,
            [(random(4, WIDTH), random(4, 3))],
            {},
            r"targets_shape_mismatch\(targets_shape=\(4, 3\), output_shape=\(4, 8\)\)",
        ),
        (None, [(random(4, WIDTH), ["a"] * 4)], {}, "stackwise.targets_not_a_tensor"),
        (None, None, {"loss": lambda output, targets: output}, "stackwise.loss_not_a_scalar"),
    ],
)
def test_what_does_not_fit_is_refused(
    layers: Any, batches: Any, more: dict[str, Any], code: str, tmp_path: Path
) -> None:
    """Before anything is saved."""
    trainer = UnifiedTrainer(configured(), output_dir=tmp_path / "out")
    with pytest.raises(ValueError, match=code):
        trainer.train_all_layers(
            [random(12, WIDTH)] if batches is None else batches,
            blocks() if layers is None else layers,
            **more,
        )
    assert not (tmp_path / "out").exists()


def test_settings_for_what_is_not_there_are_refused() -> None:
    inputs = [random(12, WIDTH)]
    with pytest.raises(ValueError, match=r"stackwise\.masking_needs_language_model"):
        UnifiedTrainer(configured(time_step_masking=True)).train_all_layers(inputs, blocks())
    with pytest.raises(ValueError, match=r"stackwise\.cache_needs_token_ids"):
        UnifiedTrainer(configured(cache_activations=True)).train_all_layers(inputs, blocks())
    config = TrainingConfig(strategy="progressive", num_epochs=1)
    with pytest.raises(ValueError, match=r"stackwise\.more_stacks_than_layers.*num_layers=2"):
        UnifiedTrainer(config).train_all_layers(inputs, blocks(2))


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"compile_mode": "default"},
        {"memory_efficient_attention": True},
        {"mixed_precision": "fp8"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_is_done_when_a_model_is_loaded_is_refused(settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    refused = rf"stackwise\.setting_of_model_loading\(setting=training\.{name}"
    with pytest.raises(ValueError, match=refused):
        UnifiedTrainer(TrainingConfig(**settings))


# a language model


@pytest.mark.parametrize("as_loader", [False, True])
def test_a_whole_model_trains_on_its_rows(as_loader: bool) -> None:
    ids = token_ids()
    items = [{"input_ids": row, "labels": row} for row in ids]
    batches = [{"input_ids": part} for part in ids.split(4)]
    loader = DataLoader(items, batch_size=4) if as_loader else batches  # type: ignore[arg-type]
    model, watching = llama(), Watching()
    trainer = UnifiedTrainer(configured(), hooks=[watching])
    state = trainer.train_all_layers(loader, model)
    assert state.step == 2 * 2 * 3
    assert trainer.trainer is not None
    assert trainer.trainer.model is model
    # the same as the model's own loss, at the depth of the first unit
    fresh = llama().eval()
    fresh.model.layers = fresh.model.layers[:2]
    expected = float(fresh(input_ids=ids[:4], labels=ids[:4]).loss.detach())
    assert watching.losses[0] == pytest.approx(expected, rel=1e-4)


def test_padding_and_labels_are_respected() -> None:
    """What is padding or has the label -100 is not learnt: nothing of it reaches the weights."""
    ids = token_ids(4, 8)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    mask[1, :3] = 0  # on the left, too
    labels = ids.masked_fill(mask == 0, -100)
    labels[2, :4] = -100
    rows = rows_of({"input_ids": ids, "labels": labels, "attention_mask": mask})
    assert [row.input_ids.tolist() for row in rows] == [
        ids[0, :5].tolist(),
        ids[1, 3:].tolist(),
        ids[2].tolist(),
        ids[3].tolist(),
    ]
    assert [row.supervised.tolist() for row in rows] == [
        [False] + [True] * 4,
        [False] + [True] * 4,
        [False] * 4 + [True] * 4,
        [False] + [True] * 7,
    ]
    found = []
    for filled in (0, 9):
        batch = {
            "input_ids": ids.masked_fill(mask == 0, filled),
            "labels": labels,
            "attention_mask": mask,
        }
        model = llama()
        UnifiedTrainer(configured()).train_all_layers([batch], model)
        found.append(weights(model))
    assert are_equal(*found)


def test_rows_that_are_all_padding_are_left_out() -> None:
    ids = token_ids(3, 4)
    mask = torch.tensor([[1] * 4, [0] * 4, [1] * 4])
    assert len(rows_of({"input_ids": ids, "attention_mask": mask})) == 2


IDS = token_ids(4, 8)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (random(2, 3), r"stackwise\.loader_without_token_ids\(given=float32\[2, 3\]\)"),
        (IDS[0], r"stackwise\.loader_without_token_ids\(given=int64\[8\]\)"),
        ((IDS[:, :-1], IDS[:, 1:]), "stackwise.labels_not_aligned"),
        (
            (IDS, torch.ones(4, dtype=torch.long)),
            r"stackwise\.batch_shapes_differ\(name=labels, .*given=int64\[4\]\)",
        ),
        (
            {"input_ids": IDS, "attention_mask": [1]},
            r"stackwise\.batch_shapes_differ\(name=attention_mask, .*given=list\)",
        ),
        (
            {"input_ids": IDS, "attention_mask": torch.zeros_like(IDS)},
            "stackwise.loader_without_trained_tokens",
        ),
        ((IDS, torch.full_like(IDS, -100)), "stackwise.loader_without_trained_tokens"),
        (IDS[:, :1], "stackwise.loader_without_trained_tokens"),
        (
            IDS + VOCAB_SIZE,
            rf"stackwise\.loader_token_out_of_range\(token=\d+, largest={LAST_TOKEN}\)",
        ),
        (IDS - 50, r"stackwise\.loader_token_out_of_range\(token=-"),
        (token_ids(2, 129), r"stackwise\.loader_row_too_long\(longest=129, positions=128\)"),
    ],
)
def test_rows_that_a_model_cannot_learn_are_refused(batch: Any, code: str) -> None:
    with pytest.raises(ValueError, match=code):
        UnifiedTrainer(configured()).train_all_layers([batch], llama())


@pytest.mark.parametrize("name", ["embedding", "head", "loss"])
def test_a_whole_model_has_its_own_parts(name: str) -> None:
    """An empty `Sequential` counts as given, too."""
    with pytest.raises(ValueError, match=r"stackwise\.whole_model_and_parts"):
        UnifiedTrainer(configured()).train_all_layers(
            [IDS], llama(), **{name: torch.nn.Sequential()}
        )


def test_layers_of_a_model_without_it_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"stackwise\.layers_fail_on_batch"):
        UnifiedTrainer(configured()).train_all_layers(
            [random(2, 5, 32)], list(llama().model.layers)
        )


def test_the_strategy_is_progressive_where_none_is_named() -> None:
    config = TrainingConfig(num_epochs=1, progressive={"target_stacks": 2})
    trainer = UnifiedTrainer(config)
    trainer.train_all_layers([IDS], llama())
    assert trainer.trainer is not None
    assert len(trainer.trainer.prepare().loop.phases) == 2
    assert config.strategy == "auto"


def test_time_steps_hide_tokens_of_a_model() -> None:
    """At each unit its own share, replaced by the last token of the vocabulary."""
    ids, watching = token_ids(8, 20), Watching()
    config = configured(
        num_epochs=1,
        time_step_masking=True,
        time_step_mask_fractions={0: 0.1, 9: 0.9},
        cache_activations=False,
    )
    watching.trainer = UnifiedTrainer(config, hooks=[watching])
    watching.trainer.train_all_layers([ids], llama())
    shares = [float((b["input_ids"] == LAST_TOKEN).sum()) / ids.numel() for b in watching.batches]
    assert shares == pytest.approx([0.1, 0.9], abs=0.06)  # the first token is never supervised
    for batch in watching.batches:
        flat = batch["input_ids"].flatten()
        assert (flat[batch["target_positions"]] == LAST_TOKEN).all()
        assert batch["is_bidirectional"]


def test_the_mask_token_is_the_one_that_the_model_names() -> None:
    ids, watching, model = token_ids(8, 20), Watching(), llama()
    ids[ids == 7] = 8
    ids[0, 0] = LAST_TOKEN
    config = configured(num_epochs=1, time_step_masking=True, cache_activations=False)
    with pytest.raises(ValueError, match=rf"stackwise\.mask_token_in_data\(mask={LAST_TOKEN}\)"):
        UnifiedTrainer(config).train_all_layers([ids], model)
    model.config.mask_token_id = 7
    watching.trainer = UnifiedTrainer(config, hooks=[watching])
    watching.trainer.train_all_layers([ids], model)
    flat = watching.batches[0]["input_ids"].flatten()
    assert set(flat[watching.batches[0]["target_positions"]].tolist()) == {7}


# what the caller gets back


def test_what_the_caller_froze_stays_as_it_is_and_is_frozen() -> None:
    model = llama().eval()
    model.model.layers[1].train()
    model.model.layers[0].requires_grad_(False)
    model.model.embed_tokens.requires_grad_(False)
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: p.clone() for name, p in model.named_parameters()}
    attention = attention_implementation(model)
    UnifiedTrainer(configured(local_loss="reconstruct")).train_all_layers([IDS], model)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert attention_implementation(model) == attention
    for name, parameter in model.named_parameters():
        assert torch.equal(before[name], parameter) != flags[name], name


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "quantised": {"quantization_enabled": True},
    "qlora": {"quantization_enabled": True, "qlora_enabled": True},
    "reconstruct": {"local_loss": "reconstruct"},
    "bf16": {"progressive": {"new_stack_precision": "bf16"}},
    "masked": {"time_step_masking": True},
    "stackwise": {"strategy": "end_to_end", "end_to_end_scope": "stackwise"},
    "fused": {"mode": "fused", "block_size": 2},
}


@pytest.mark.parametrize("name", slow_but(["qlora"], FORMS))
@pytest.mark.parametrize("is_same_model", slow_but([False], [True, False]))
def test_a_model_that_was_broken_off_goes_on_to_the_same_weights(
    name: str, is_same_model: bool, tmp_path: Path
) -> None:
    """In the second unit; with the very model that it was broken off with, and with a new one."""
    settings = {"checkpoint_frequency": 2, **FORMS[name]}
    batches = [{"input_ids": part} for part in token_ids().split(4)]
    whole = llama()
    last = UnifiedTrainer(configured(**settings)).train_all_layers(batches, whole).step
    model = llama()
    parts = [name for name, _ in model.named_parameters()]
    broken = UnifiedTrainer(configured(**settings), output_dir=tmp_path, hooks=[Watching(last - 4)])
    with pytest.raises(KeyboardInterrupt):
        broken.train_all_layers(batches, model)
    assert [name for name, _ in model.named_parameters()] == parts
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert not are_equal(weights(model), weights(whole))
    if not is_same_model:
        model = llama()
    watching = Watching()
    again = UnifiedTrainer(configured(**settings), output_dir=tmp_path, hooks=[watching])
    assert again.train_all_layers(batches, model).step == last
    assert len(watching.losses) == 1 + 4  # a step whose end was broken off ends once more
    assert are_equal(weights(model), weights(whole))
    once_more = Watching()
    UnifiedTrainer(configured(**settings), output_dir=tmp_path, hooks=[once_more]).train_all_layers(
        batches, model
    )
    assert once_more.losses == []  # it is finished
    assert are_equal(weights(model), weights(whole))


def test_layers_that_were_broken_off_go_on_to_the_same_weights(tmp_path: Path) -> None:
    """With dropout, and a loader that shuffles."""
    rows = TensorDataset(random(12, WIDTH), random(12, WIDTH, seed=1))

    def train(layers: list[torch.nn.Module], folder: Path, broken_after: int | None = None) -> None:
        loader = DataLoader(rows, batch_size=4, shuffle=True)
        config = configured(checkpoint_frequency=1)
        hooks = [Watching(broken_after)]
        UnifiedTrainer(config, output_dir=folder, hooks=hooks).train_all_layers(loader, layers)

    whole, broken, new = blocks(), blocks(), [Block() for _ in range(LAYERS)]
    train(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(broken, tmp_path / "broken", broken_after=8)
    train(new, tmp_path / "broken")
    assert are_equal(weights(new), weights(whole))


def test_a_damaged_newest_checkpoint_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(checkpoint_frequency=1, keep_checkpoints=3)
    whole = blocks()
    UnifiedTrainer(config).train_all_layers([random(12, WIDTH)], whole)
    trainer = UnifiedTrainer(config, output_dir=tmp_path, hooks=[Watching(3)])
    with pytest.raises(KeyboardInterrupt):
        trainer.train_all_layers([random(12, WIDTH)], blocks())
    assert trainer.trainer is not None
    assert trainer.trainer.checkpoints is not None
    newest = trainer.trainer.checkpoints.checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:-20])
    layers = blocks()
    UnifiedTrainer(config, output_dir=tmp_path).train_all_layers([random(12, WIDTH)], layers)
    assert "training.skipping_damaged_checkpoint" in caplog.text
    assert are_equal(weights(layers), weights(whole))


@pytest.mark.parametrize(
    ("settings", "rows", "count", "named"),
    [
        ({"seed": 1}, 12, LAYERS, "seed: was 0, is 1"),
        ({}, 8, LAYERS, "data: was"),
        (
            {},
            12,
            LAYERS + 1,
            "model.name: was LayersModel of 288 parameters, is LayersModel of 360",
        ),
    ],
)
def test_another_training_does_not_go_on_here(
    settings: dict[str, Any], rows: int, count: int, named: str, tmp_path: Path
) -> None:
    UnifiedTrainer(configured(), output_dir=tmp_path).train_all_layers(
        [random(12, WIDTH)], blocks()
    )
    other, layers = UnifiedTrainer(configured(**settings), output_dir=tmp_path), blocks(count)
    before = weights(layers)
    with pytest.raises(CheckpointError, match=named):
        other.train_all_layers([random(rows, WIDTH)], layers)
    assert are_equal(weights(layers), before)


@pytest.mark.parametrize("is_whole_model", [True, False])
def test_stacks_and_rack_are_saved(is_whole_model: bool, tmp_path: Path) -> None:
    """The rack of a model of transformers is a folder that transformers reads."""
    config = configured(save_rack=True, quantization_enabled=True)
    with pytest.raises(ValueError, match=r"stackwise\.save_rack_needs_folder"):
        UnifiedTrainer(config)
    model: Any = llama() if is_whole_model else blocks()
    batch = IDS if is_whole_model else random(12, WIDTH)
    trainer = UnifiedTrainer(config, output_dir=tmp_path)
    trainer.train_all_layers([batch], model)
    assert trainer.trainer is not None
    trained = trainer.trainer.model
    assert trained is not None
    other = llama() if is_whole_model else copy.deepcopy(trained)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    load_stacks(tmp_path / "stacks", other)
    assert are_equal(weights(other), weights(trained))
    plan = json.loads((tmp_path / "stackwise.json").read_text())["plan"]
    assert [phase["name"] for phase in plan["phases"]] == [
        "layers 1 to 2 of 4",
        "layers 3 to 4 of 4",
    ]
    if is_whole_model:
        rack = type(model).from_pretrained(tmp_path / "rack")
        assert are_equal(weights(rack), weights(model))
    else:
        assert load_file(tmp_path / "rack/model.safetensors").keys() == trained.state_dict().keys()


def test_the_plan_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=UnifiedTrainer.__module__):
        UnifiedTrainer(configured()).train_all_layers([IDS], llama())
    order = "stackwise.order_one_after_another()"
    stacks = "stackwise.equal_stacks(num_stacks=2, num_layers=2)"
    heading = f"stackwise.plan_heading(stacks={stacks}, order={order}, num_steps=4,"
    assert heading in caplog.text
    assert "stackwise.cached_activations_size(size=2.0 KiB)" in caplog.text  # 32 tokens of 32


def test_nothing_is_saved_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    UnifiedTrainer(configured()).train_all_layers([random(12, WIDTH)], blocks())
    assert list(tmp_path.iterdir()) == []
