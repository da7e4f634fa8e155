"""Test whether a process shards the model, and what it holds of the model at the end."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models.trainable_state import trainable_state
from infrastructure.training import placement as placement_module
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.distributed.group import ALONE, Group, JoinedGroup
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.extensions.extension_hooks import Extension, Hook, Observer
from infrastructure.training.placement import Placement
from tests.training.small_runs import small_trainer


class OfFirst(Extension):
    is_of_first_rank = True


def of_two(rank: int = 0) -> Placement:
    """The place of one of two processes."""
    ranks = Group()
    ranks.rank, ranks.size = rank, 2
    return Placement(ranks)


def test_a_rank_other_than_0_has_the_shared_extensions_alone() -> None:
    hooks: list[Hook] = [OfFirst(), Extension(), Observer()]
    assert of_two(0).of_this_rank(hooks) == Placement().of_this_rank(hooks) == hooks
    assert of_two(1).of_this_rank(hooks) == hooks[1:2]


def test_an_extension_that_the_others_cannot_build_is_refused() -> None:
    hooks: list[Hook] = [OfFirst(), Observer(), Extension()]
    Placement().refuse_own(hooks)
    of_two().refuse_own(hooks[:2])
    with pytest.raises(ConfigurationError, match=r"num_processes=2, extension=Extension"):
        of_two().refuse_own(hooks)


class _Rank(JoinedGroup):
    """A rank that needs no others, because there is nothing to exchange."""

    def __init__(self, rank: int) -> None:
        self.rank, self.closed = rank, list[str | None]()

    def decide(self, make: Callable[[], Any]) -> Any:
        return make()

    def busy(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self, reason: str | None = None) -> None:
        self.closed.append(reason)


@pytest.mark.parametrize("case", ["first", "other", "interrupted", "failed"])
def test_the_trained_parts_are_the_model_of_the_first_rank(
    case: str, saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_trainer(saved_llama, tmp_path, lora=LoraConfig(r=4))
    session = trainer.prepare()
    step, state = session.loop.optimizer_step, session.state
    before = state.model
    for weight in trainable_state(before).values():
        weight.fill_(0.25)
    step.optimizer.state[next(iter(before.parameters()))]["kept"] = torch.zeros(1)
    monkeypatch.setattr(placement_module, "is_sharded", lambda model: True)
    rank = step.group = _Rank(1 if case == "other" else 0)
    state.is_interrupted = case == "interrupted"
    reason = "a failure" if case == "failed" else None
    Placement(rank, Sharding.SHARD).leave(session, reason)
    assert rank.closed == [reason]
    assert (trainer.model is before) == (state.model is before) == (case != "first")
    assert bool(step.optimizer.state) == (case in ("interrupted", "failed"))
    if case == "first":
        assert trainer.model is trainer.adapter.model is state.model
        weights = trainable_state(trainer.model)
        assert weights.keys() == trainable_state(before).keys()
        assert all(bool((weight == 0.25).all()) for weight in weights.values())


def test_weights_are_put_together_in_the_folder_of_the_run(tmp_path: Path) -> None:
    assert placement_module._folder(CheckpointManager(tmp_path / "checkpoints")) == tmp_path
    assert placement_module._folder(None) == Path(tempfile.gettempdir())


def adapter_of(lora: bool = False, weight_bytes: int | None = None, **settings: Any) -> Any:
    return SimpleNamespace(
        model_config=ModelConfig(name="no/such", lora_config=LoraConfig(r=4) if lora else None),
        training_config=TrainingConfig(**settings),
        device=torch.device("cpu"),
        weight_bytes=lambda: weight_bytes,
    )


@pytest.mark.parametrize(
    ("lora", "shard", "weight_bytes", "there", "is_too_large"),
    [
        (True, "auto", 1000, 10 + 1000 + 500, False),
        (True, "auto", 1000, 10 + 1000 + 500 - 1, True),
        (False, "yes", 1000, 10 + 1000 + 2000, False),  # with gradients and AdamW's moments
        (False, "yes", 1000, 10 + 1000 + 2000 - 1, True),
        (False, "no", 1000, 0, False),
        (False, "auto", None, 0, False),
    ],
)
def test_a_model_is_too_large_where_a_process_cannot_hold_it_beside_its_part(
    monkeypatch: pytest.MonkeyPatch,
    lora: bool,
    shard: str,
    weight_bytes: int | None,
    there: int,
    is_too_large: bool,
) -> None:
    adapter = adapter_of(lora, weight_bytes, shard=shard)
    budget: Any = SimpleNamespace(limit_bytes=lambda _, size: there * (size == 2))
    used = SimpleNamespace(now=lambda: 10)
    monkeypatch.setattr(placement_module, "PeakMemory", lambda device: used)
    assert not Placement(ALONE).is_too_large(adapter, budget)  # one process spreads nothing
    assert not of_two(1).is_too_large(adapter, budget)  # rank 0 decides
    assert of_two().is_too_large(adapter, budget) == is_too_large


SHARED = "training.sharded_state(size=2, share=1/2)"
ON_DISK = f"{SHARED}training.no_process_has_whole_model()"
FITS = "training.state_fits_each_process(size=2, needed=2.0 GiB, available=2.0 GiB)"


@pytest.mark.parametrize(
    ("shard", "on_disk", "there", "sharding", "sentence"),
    [
        ("auto", False, 2 << 30, None, FITS),
        ("auto", False, 1 << 30, "yes", "needed=2.0 GiB, available=1.0 GiB, sharding={})"),
        ("auto", True, 4 << 30, "yes", "needed=5.0 GiB, available=4.0 GiB, sharding={})"),
        ("offload", True, 0, "offload", "setting=training.shard=offload, reason={})"),
        ("yes", False, 9 << 30, "yes", "setting=training.shard=yes, reason={})"),
    ],
)
def test_a_model_is_sharded_where_it_must_or_should_be_with_the_reason(
    shard: str, on_disk: bool, there: int, sharding: str | None, sentence: str
) -> None:
    place = of_two()
    adapter = adapter_of(weight_bytes=3 << 30, shard=shard)
    adapter.on_disk = on_disk
    budget = SimpleNamespace(limit_bytes=lambda _, size: there * (size == 2))
    fit: Any = SimpleNamespace(adapter=adapter, fixed_bytes=lambda: 2 << 30, budget=budget)
    assert place.may_shard(adapter)
    place.choose_sharding(fit)
    code = "training.state_is_sharded" if shard == "auto" else "config.setting_says"
    whole = sentence.format(ON_DISK if on_disk else SHARED)
    assert place.reason == (f"{code}({whole}" if sharding else whole)
    assert place.sharding == sharding


def test_a_model_is_not_sharded_where_it_must_not_or_cannot_be() -> None:
    quantized = adapter_of()
    quantized.model_config.quantization = "4bit"
    assert not of_two().may_shard(quantized)
    assert not of_two().may_shard(adapter_of(shard="no"))


@pytest.mark.parametrize(
    ("sharding", "group", "is_sharded"),
    [(Sharding.SHARD, _Rank(0), 1), (None, _Rank(0), 0), (Sharding.SHARD, ALONE, 0)],
)
def test_a_model_is_sharded_over_ranks_that_have_joined(
    sharding: Sharding | None, group: Group, is_sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    ranks = SimpleNamespace(size=2, is_first=True, join=lambda welcome: group)
    place = Placement(ranks, sharding)  # type: ignore[arg-type]
    monkeypatch.setattr(Placement, "_shard", lambda self, *given: done.append(given[:2]))
    given: Any = SimpleNamespace(decide=lambda: SimpleNamespace(resolved=lambda: None))
    assert place.join(given, given, dict) is group
    assert done == ([(group, sharding)] if is_sharded else [])
