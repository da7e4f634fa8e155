"""What a Trainer and its callbacks remember, into a version and out of it."""

import copy
import math
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.training.hf_bridge.carried_state import (
    CarriedState,
    callback_states,
    lost_state,
    restore_callbacks,
)

CPU = torch.device("cpu")


class Patient:
    """As a callback with a state of transformers'."""

    def __init__(self, patience: int = 3) -> None:
        self.patience, self.count = patience, 0

    def state(self) -> dict[str, Any]:
        return {"args": {"patience": self.patience}, "attributes": {"count": self.count}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> None:
        raise AssertionError("callbacks stay the objects that they are")


class Watching:
    """Has something else that is called like it."""

    count = 7

    def state(self) -> None:
        raise AssertionError("not what a Trainer keeps")


class Control(Patient):
    pass


class Trainer:
    """Attributes as those of Trainers, with what each has at its beginning."""

    def __init__(self, callbacks: Any = ()) -> None:
        self._last_loaded_step = -1  # first, as whatever is passed over
        self._total_loss_scalar, self._globalstep_last_logged = 0.0, 0
        self._tr_loss = torch.tensor(0.0)
        self.current_flos, self._initial_num_input_tokens_seen = 0.0, 0
        self._current_train_step_time, self.is_in_train = 0.0, False
        self.means = torch.zeros(2)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._logs = {"prompt": deque(maxlen=3), "rewards": defaultdict(lambda: deque(maxlen=2))}
        self._buffered_inputs: Any = None
        self._step, self.rate, self.names = 0, 0.5, ("a", "b")
        self.unchanged = [1, 2]
        self.model = torch.nn.Linear(1, 1)
        self.callback_handler = SimpleNamespace(callbacks=list(callbacks))
        self.control = Control()

    def train(self) -> None:
        self._total_loss_scalar, self._globalstep_last_logged = 8.25, 4
        self._tr_loss += 1.75
        self.means += 1  # in place
        self.current_flos, self._initial_num_input_tokens_seen = 64.0, 500
        self._current_train_step_time, self.is_in_train = 3.0, True
        self._metrics["train"]["kl"] += [0.5, math.nan]
        self._logs["prompt"].extend("abcd")
        self._logs["rewards"]["mine"].append(np.float32(0.25))
        ids = torch.arange(6).reshape(2, 3)
        self._buffered_inputs = [{"ids": ids, "texts": ["x"], "none": None}, {"ids": ids + 1}]
        self._step, self.rate, self.names = 9, math.inf, ("a", "c")
        self._last_loaded_step = 4


def carried(trainer: Any, loader: object = None) -> CarriedState:
    return CarriedState(trainer, loader, CPU)


def written(held: CarriedState) -> tuple[dict[str, dict[str, torch.Tensor]], Any]:
    """What it carries, as a version on the disk: no longer in the memory of the training."""
    tensors, values = held.take()
    return {g: {n: t.clone() for n, t in group.items()} for g, group in tensors.items()}, values


def test_what_changed_is_carried_and_filled_into_the_containers_that_are_there() -> None:
    trainer = Trainer()
    held = carried(trainer)
    trainer.train()
    tensors, values = written(held)
    assert set(values["attributes"]) == {
        *("_total_loss_scalar", "_globalstep_last_logged", "_tr_loss", "_metrics", "_logs"),
        *("_buffered_inputs", "_step", "rate", "names", "means", "current_flos"),
    }
    again = Trainer()
    metrics, logs, model = again._metrics, again._logs, again.model
    carried(again).restore(tensors, values)
    assert (again._total_loss_scalar, again._globalstep_last_logged) == (8.25, 4)
    assert (again._tr_loss.item(), again._tr_loss.dtype) == (1.75, torch.float32)
    assert again._metrics is metrics
    assert again._metrics["train"]["kl"][0] == 0.5
    assert math.isnan(again._metrics["train"]["kl"][1])
    again._metrics["train"]["new"].append(1)  # it is a defaultdict still
    again._metrics["eval"]["new"].append(1)
    assert again._logs is logs
    assert (list(again._logs["prompt"]), again._logs["prompt"].maxlen) == (["b", "c", "d"], 3)
    assert (list(again._logs["rewards"]["mine"]), again._logs["rewards"]["mine"].maxlen) == (
        [0.25],
        2,
    )
    first, second = again._buffered_inputs
    assert torch.equal(first["ids"], torch.arange(6).reshape(2, 3))
    assert torch.equal(second["ids"], first["ids"] + 1)
    assert (first["texts"], first["none"]) == (["x"], None)
    assert (again._step, again.rate, again.names) == (9, math.inf, ("a", "c"))
    assert (again.means.tolist(), again.current_flos) == ([1.0, 1.0], 64.0)
    assert again._initial_num_input_tokens_seen == 0
    assert again._last_loaded_step == -1, "what another process has loaded is not loaded here"
    assert again.model is model


def test_a_tensor_of_the_gpu_returns_there_and_one_of_the_cpu_stays() -> None:
    trainer: Any = Trainer()
    trainer.counts = None
    held = carried(trainer)
    trainer.counts, trainer.means = torch.ones(3), torch.ones(2)
    tensors, values = written(held)
    values["attributes"]["counts"]["device"] = "cuda"
    again: Any = Trainer()
    CarriedState(again, None, torch.device("meta")).restore(tensors, values)
    assert (again.counts.device.type, again.means.device.type) == ("meta", "cpu")


@pytest.mark.parametrize(
    "name",
    [
        *("train_dataset", "eval_dataset", "_train_batch_size", "_signature_columns"),
        *("processing_class", "tokenizer", "_tokenizer", "_processor", "_last_loaded_step"),
        *("is_in_train", "_initial_num_input_tokens_seen", "_current_train_step_time"),
    ],
)
def test_what_belongs_to_a_process_or_to_its_data_is_not_carried(name: str) -> None:
    trainer = Trainer()
    for value in (1, Counting()):
        setattr(trainer, name, None)
        held = CarriedState(trainer, None, CPU)
        setattr(trainer, name, value)
        carried_names = held.take()[1]["attributes"]
        assert not [one for one in carried_names if one.startswith(name)]  # type: ignore[union-attr]


def test_numbers_of_another_precision_have_changed() -> None:
    trainer = Trainer()
    held = carried(trainer)
    trainer.means = trainer.means.double()
    tensors, values = written(held)
    again = Trainer()
    carried(again).restore(tensors, values)
    assert again.means.dtype == torch.float64


class Counting:
    """A loss, or a reward, with a state of its own."""

    def __init__(self) -> None:
        self.calls, self.means = 0, [torch.zeros(2)]

    def __call__(self) -> None:
        self.calls += 1
        self.means[0] = self.means[0] + self.calls


def counts() -> None:
    counts.calls += 1  # type: ignore[attr-defined]


def test_what_a_loss_or_a_reward_counts_is_carried() -> None:
    def made() -> Any:
        trainer: Any = Trainer()
        trainer.compute_loss_func, trainer.reward_funcs = Counting(), [counts, Counting()]
        trainer.compute_metrics = torch.nn.Identity()
        counts.calls = 0  # type: ignore[attr-defined]
        return trainer

    trainer = made()
    held = carried(trainer)
    for _ in range(2):
        trainer.compute_loss_func()
    for reward in trainer.reward_funcs:
        reward()
    tensors, values = written(held)
    again = made()
    carried(again).restore(tensors, values)
    assert again.compute_loss_func.calls == 2
    assert again.compute_loss_func.means[0].tolist() == [3.0, 3.0]
    assert (counts.calls, again.reward_funcs[1].calls) == (1, 1)  # type: ignore[attr-defined]
    assert again.reward_funcs[1].means[0].tolist() == [1.0, 1.0]
    with pytest.raises(CheckpointError, match=r"trainer\.part_missing.*part=compute_loss_func"):
        carried(Trainer()).restore(tensors, values)


def test_generators_of_a_collator_go_on_where_they_were() -> None:
    class Masking:
        def __init__(self) -> None:
            self.made = torch.Generator().manual_seed(3)
            self.later: Any = (
                None  # as a collator of transformers, which makes it for its first batch
            )
            self.numpy = np.random.default_rng(3)

        def __call__(self) -> list[float]:
            self.later = self.later or torch.Generator().manual_seed(4)
            drawn = [torch.rand(1, generator=one).item() for one in (self.made, self.later)]
            return [*drawn, self.numpy.random()]

    def made() -> Any:
        trainer: Any = Trainer()
        trainer.data_collator = Masking()
        return trainer

    trainer = made()
    held = carried(trainer)
    trainer.data_collator()
    tensors, values = written(held)
    expected = [trainer.data_collator() for _ in range(2)]
    again = made()
    carried(again).restore(tensors, values)
    assert [again.data_collator() for _ in range(2)] == expected


@pytest.mark.parametrize("before", [None, {}, [1], deque([1], 2), 3, "text", torch.ones(1)])
@pytest.mark.parametrize("after", [None, {"a": [2]}, [2], (), 4.5, "other", True])
def test_an_attribute_may_become_another_kind(before: Any, after: Any) -> None:
    def made() -> Any:
        trainer: Any = Trainer()
        trainer.kind = copy.deepcopy(before)
        return trainer

    trainer = made()
    held = carried(trainer)
    trainer.kind = after
    again = made()
    carried(again).restore(*written(held))
    kind = list(again.kind) if isinstance(again.kind, deque) else again.kind
    assert kind == after


def test_a_version_shares_no_memory_with_what_was_put_back() -> None:
    trainer = Trainer()
    held = carried(trainer)
    trainer.train()
    tensors, values = written(held)
    again = Trainer()
    carried(again).restore(tensors, values)
    again._tr_loss += 1
    assert tensors["carried"]["_tr_loss/0"].item() == 1.75


def test_what_a_version_does_not_hold_is_as_when_the_trainer_was_made() -> None:
    """A Trainer that was stopped is run again: it still has what came after the version."""
    trainer = Trainer()
    held = carried(trainer)
    tensors, values = written(held)
    assert set(values["attributes"]) == {
        *("_total_loss_scalar", "_globalstep_last_logged", "_tr_loss", "current_flos")
    }
    trainer.train()
    carried(trainer).restore(tensors, values)
    assert (trainer._step, trainer.rate, trainer._buffered_inputs) == (0, 0.5, None)
    assert trainer.means.tolist() == [0.0, 0.0]
    assert trainer._metrics == {"train": {}, "eval": {}}
    assert trainer._tr_loss.item() == 0.0
    trainer.train()
    assert "_step" in carried(trainer).take()[1]["attributes"]


def test_a_sum_that_the_trainer_closes_is_that_of_its_steps() -> None:
    trainer = Trainer()
    held = carried(trainer)
    trainer.train()
    held.steps_end(awaits_evaluation=True)
    trainer._total_loss_scalar += trainer._tr_loss.item()
    _, values = held.take()
    assert values["attributes"]["_total_loss_scalar"] == 8.25
    assert values["awaits_evaluation"] is True


def test_seconds_are_those_of_all_processes() -> None:
    trainer = Trainer()
    held = carried(trainer)
    tensors, values = held.take()
    assert 0 <= values["seconds"] < 60
    held.restore(tensors, {**values, "seconds": 100.0})
    assert 100 <= held.seconds < 160
    assert held.take()[1]["seconds"] >= 100


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_epoch_is_drawn_again_as_it_was(is_wrapped: bool) -> None:
    own = torch.Generator().manual_seed(5)

    def loader() -> Any:
        sampler = SimpleNamespace(generator=torch.Generator().manual_seed(5))
        inner = SimpleNamespace(sampler=sampler, batch_sampler=SimpleNamespace(sampler=sampler))
        inner.base_dataloader = inner  # as some wrap themselves
        return SimpleNamespace(base_dataloader=inner) if is_wrapped else inner

    def generator_of(loader: Any) -> torch.Generator:
        return loader.base_dataloader.sampler.generator  # type: ignore[no-any-return]

    first = loader()
    held = carried(Trainer(), first)
    held.epoch_begins()
    drawn = [torch.rand(1), torch.rand(2, generator=generator_of(first))]
    assert torch.equal(drawn[1], torch.rand(2, generator=own))
    torch.rand(1)
    tensors, values = held.take()
    second = loader()
    torch.rand(2, generator=generator_of(second))
    again = carried(Trainer(), second)
    again.restore(tensors, values)
    torch.rand(3)
    again.epoch_begins()
    repeated = [torch.rand(1), torch.rand(2, generator=generator_of(second))]
    assert all(map(torch.equal, drawn, repeated))
    third = loader()
    saved: Any = again.take()
    again.epoch_begins()
    assert not torch.equal(torch.rand(1), drawn[0]), "the next epoch is drawn anew"
    last = carried(Trainer(), third)  # the same epoch, interrupted once more
    last.restore(*saved)
    last.epoch_begins()
    repeated = [torch.rand(1), torch.rand(2, generator=generator_of(third))]
    assert all(map(torch.equal, drawn, repeated))


def test_a_trainer_that_is_not_known_loses_nothing_else() -> None:
    held = carried(None)
    tensors, values = held.take()
    assert values["attributes"] == {}
    held.restore(tensors, values)
    assert callback_states(None) is None
    restore_callbacks(None, {"Patient": {"attributes": {"count": 2}}})
    assert lost_state(None) == ""


def test_callbacks_of_one_class_get_their_states_back_in_their_order() -> None:
    trainer = Trainer([Patient(3), Watching(), Patient(5), Patient(8)])
    for number, callback in enumerate(trainer.callback_handler.callbacks):
        callback.count = 10 + number
    states = callback_states(trainer)
    assert states is not None
    assert [one["attributes"]["count"] for one in states["Patient"]] == [10, 12, 13]
    assert states["Control"]["attributes"] == {"count": 0}
    callbacks = [Patient(3), Watching(), Patient(6)]
    restore_callbacks(Trainer(callbacks), states)
    assert [callback.count for callback in callbacks] == [10, 7, 12]
    assert callbacks[2].patience == 6, "what it was made with is for its maker to say"


def test_a_callback_that_does_not_take_its_state_is_named() -> None:
    class Stubborn(Patient):
        count = property(lambda self: 1, lambda self, value: None)

    with pytest.raises(CheckpointError, match=r"trainer\.callback_not_restored.*name=Stubborn"):
        restore_callbacks(Trainer([Stubborn()]), {"Stubborn": Patient().state()})


def test_a_state_with_tensors_is_refused() -> None:
    patient = Patient()
    patient.count = torch.tensor(1)  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"trainer\.callback_state_has_tensors.*name=Patient"):
        callback_states(Trainer([patient]))


def test_weights_of_callbacks_that_no_version_holds_are_named() -> None:
    class BEMACallback:
        pass

    class SyncRefModelCallback:
        pass

    lost = lost_state(Trainer([SyncRefModelCallback(), Patient(), BEMACallback()]))
    assert lost.index("(BEMACallback) and") < lost.index("(SyncRefModelCallback)")
    assert lost_state(Trainer([Patient(), BEMACallback()])).count("Callback") == 1
    assert lost_state(Trainer([Patient()])) == ""


def test_prompts_of_trl_go_on_in_the_order_of_their_epoch() -> None:
    trl = pytest.importorskip("trl.trainer.utils")

    def loader() -> tuple[Any, Any]:
        sampler = trl.RepeatSampler(range(12), mini_repeat_count=1, batch_size=2, seed=3)
        batches = torch.utils.data.BatchSampler(sampler, 2, drop_last=False)
        return sampler, torch.utils.data.DataLoader(range(12), batch_sampler=batches)  # type: ignore[arg-type]

    sampler, undisturbed = loader()
    held, epochs = carried(Trainer(), undisturbed), []
    for _ in range(3):
        held.epoch_begins()
        epochs.append(list(sampler))
    assert epochs[0] != epochs[2]
    tensors, values = held.take()
    sampler, anew = loader()
    again = carried(Trainer(), anew)
    again.restore(tensors, values)
    again.epoch_begins()
    assert list(sampler) == epochs[2]
