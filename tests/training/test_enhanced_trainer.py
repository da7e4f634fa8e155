"""The whole training on a real small Llama: exact resume, accumulation, packing, seed 001."""

import json
import math
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.backup.format.retention import Retention
from infrastructure.config.base import ConfigurationError
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.agent import SPENT_VARIABLE
from infrastructure.core.stop_signals import StopSignal
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.run.identity import HELD_OUT_DATA
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.save_schedule import REQUEST_FILE
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed.group import Group
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.placement import Placement
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.trainer_factory import TrainerFactory
from tests.slow import slow_but

NUM_ROWS = 26


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Rows of very different lengths; answers only are learnt."""
    random = np.random.RandomState(0)
    rows = []
    for index in range(NUM_ROWS):
        words = [str(word) for word in random.choice(["sky", "grass", "blue", "12"], index % 7 + 1)]
        rows.append({"prompt": f"Reverse {' '.join(words)}", "completion": " ".join(words[::-1])})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


class Losses(Observer):
    def __init__(self) -> None:
        self.values: list[float] = []

    def step_end(self, state: TrainingState) -> None:
        self.values.append(state.loss)


class Training:
    """An EnhancedTrainer on the small Llama with what a test wants changed."""

    def __init__(self, model: Path, data: Path, *, lora: bool = False, **settings: Any) -> None:
        of_data = ("packing", "streaming", "over_length", "eval_path")
        data_settings = {k: settings.pop(k) for k in of_data if k in settings}
        if "eval_path" not in data_settings:
            data_settings["validation_split"] = 0.2
        checkpoints, placement = (settings.pop(k, None) for k in ("checkpoints", "placement"))
        values = {"batch_size": 4, "num_epochs": 2, "learning_rate": 3e-3, "warmup_steps": 1}
        self.losses = Losses()
        self.trainer = EnhancedTrainer(
            ModelConfig(
                name=str(model),
                lora_config=LoraConfig(r=4, alpha=8, dropout=0.1) if lora else None,
            ),
            TrainingConfig(**{**values, **settings}),
            DataConfig(path=str(data), max_length=96, num_workers=0, **data_settings),
            device="cpu",
            cache_config=CacheConfig(directory=str(data.parent / "cache")),
            checkpoint_directory=checkpoints,
            hooks=[self.losses],
            placement=placement,
        )

    def run(self) -> "Training":
        self.trainer.train()
        return self

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        model = self.trainer.initialize_model()
        return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def assert_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("streaming", slow_but([True], [False, True]))
def test_a_resumed_lora_training_gives_the_same_bits(
    saved_llama: Path, data_file: Path, tmp_path: Path, streaming: bool
) -> None:
    """LoRA with dropout, packing, accumulation 3, in the middle of a later epoch."""
    settings: dict[str, Any] = {
        "lora": True,
        "batch_size": 2,
        "gradient_accumulation": 3,
        "checkpoint_frequency": 1,
        "keep_checkpoints": 99,
        "streaming": streaming,
    }
    whole = Training(saved_llama, data_file, checkpoints=tmp_path / "a", **settings).run()
    assert whole.trainer.adapter.packs  # type: ignore[attr-defined]
    num_steps = len(whole.losses.values)
    assert num_steps == 8
    saved = CheckpointManager(tmp_path / "a", Retention(99))
    step = num_steps // 2 + 1
    again = Training(saved_llama, data_file, checkpoints=tmp_path / "b", **settings)
    again.trainer.restore(by_step(saved.store)[step])
    again.run()
    assert again.losses.values == whole.losses.values[step:]
    assert_same_bits(again.weights, whole.weights)


def without_grid(identity: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """What a checkpoint held before lengths were rounded."""
    return lambda: {name: fact for name, fact in identity().items() if name != "size_grid"}


def test_a_run_that_began_before_lengths_were_rounded_goes_on_with_exact_ones(
    saved_llama: Path, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bits of the run that was never interrupted: dropout would draw other numbers."""
    settings: dict[str, Any] = {"lora": True, "num_epochs": 1}
    settings |= {"checkpoint_frequency": 3, "keep_checkpoints": 9}
    before = Training(saved_llama, data_file, checkpoints=tmp_path / "a", **settings)
    adapter = before.trainer.adapter
    before.trainer.initialize_model()
    assert adapter.size_grid is SizeGrid.EIGHTHS
    adapter.size_grid = SizeGrid.EXACT
    monkeypatch.setattr(before.trainer, "identity", without_grid(before.trainer.identity))
    before.run()
    rounded = Training(saved_llama, data_file, checkpoints=tmp_path / "b", **settings).run()
    assert rounded.losses.values != before.losses.values
    for run, folder, grid in (
        (before, "a", SizeGrid.EXACT),
        (rounded, "b", SizeGrid.EIGHTHS),
    ):
        saved = by_step(CheckpointManager(tmp_path / folder, Retention(9)).store)
        again = Training(saved_llama, data_file, checkpoints=tmp_path / f"{folder}2", **settings)
        again.trainer.restore(saved[3])
        assert again.trainer.adapter.size_grid is grid
        assert again.trainer.identity()["size_grid"] == grid  # and so will whoever goes on
        again.run()
        assert_same_bits(again.weights, run.weights)


# Plain descent in fp32: bf16, which a CPU may prefer, rounds a packed row's sums otherwise.
EXACT = {"optimizer": "sgd", "mixed_precision": "fp32"}


def largest_difference(first: Training, second: Training) -> float:
    pairs = zip(first.weights.values(), second.weights.values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def test_one_times_eight_equals_eight_times_one(saved_llama: Path, data_file: Path) -> None:
    """Answers of different lengths, one optimizer step of plain gradient descent."""
    settings: dict[str, Any] = {**EXACT, "max_steps": 1, "learning_rate": 0.1}
    whole = Training(saved_llama, data_file, batch_size=8, **settings).run()
    pieces = Training(saved_llama, data_file, batch_size=1, gradient_accumulation=8, **settings)
    assert largest_difference(whole, pieces.run()) < 1e-6
    assert whole.losses.values == pytest.approx(pieces.losses.values, abs=1e-6)


def test_packing_changes_the_speed_and_not_the_result(saved_llama: Path, data_file: Path) -> None:
    settings: dict[str, Any] = {**EXACT, "max_steps": 1, "learning_rate": 0.1}
    packed = Training(saved_llama, data_file, packing=True, **settings).run()
    padded = Training(saved_llama, data_file, packing=False, **settings).run()
    assert packed.trainer.adapter.packs  # type: ignore[attr-defined]
    assert not padded.trainer.adapter.packs  # type: ignore[attr-defined]
    assert largest_difference(packed, padded) < 1e-6


def test_training_lowers_the_held_out_loss(saved_llama: Path, data_file: Path) -> None:
    training = Training(saved_llama, data_file, num_epochs=6)
    before = training.trainer.evaluate()["eval_loss"]
    training.run()
    assert training.trainer.evaluate()["eval_loss"] < 0.8 * before


def test_evaluating_leaves_no_trace(saved_llama: Path, data_file: Path) -> None:
    settings: dict[str, Any] = {"lora": True, "num_epochs": 1}
    often = Training(saved_llama, data_file, validation_frequency=1, **settings).run()
    never = Training(saved_llama, data_file, validation_interval=None, **settings).run()
    assert_same_bits(often.weights, never.weights)


def test_gradient_checkpointing_changes_memory_and_not_the_result(
    saved_llama: Path, data_file: Path
) -> None:
    plain = Training(saved_llama, data_file, lora=True, max_steps=3).run()
    again = Training(
        saved_llama, data_file, lora=True, max_steps=3, gradient_checkpointing=True
    ).run()
    assert largest_difference(plain, again) < 1e-6


def test_the_calls_of_the_specification_work(saved_llama: Path, data_file: Path) -> None:
    """Seed 001: components made one by one, and the factory."""
    model_config = ModelConfig(name=str(saved_llama))
    training_config = TrainingConfig(max_steps=1, batch_size=2)
    data_config = DataConfig(path=str(data_file), max_length=96, num_workers=0)
    model_adapter = get_model_adapter("standard", model_config, training_config, "cpu")
    training_strategy = get_training_strategy("standard", training_config)
    trainer = EnhancedTrainer(
        model_config=model_config,
        training_config=training_config,
        data_config=data_config,
        model_adapter=model_adapter,
        training_strategy=training_strategy,
        device="cpu",
        cache_config=CacheConfig(directory=str(data_file.parent / "cache")),
    )
    assert trainer.initialize_model() is model_adapter.model
    assert trainer.train().step == 1
    made = TrainerFactory().create_trainer(model_config, training_config, data_config)
    assert type(made) is EnhancedTrainer


def test_data_in_which_nothing_is_left_is_refused(saved_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    training = Training(saved_llama, path)
    training.trainer.data_config.max_length = 2
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        training.trainer.prepare()


def test_the_micro_batch_that_fitted_is_begun_with_next_time(
    saved_llama: Path, data_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For the same device, model and length only; a checkpoint's own size goes before it."""
    settings: dict[str, Any] = {"batch_size": 4, "max_steps": 2, "keep_checkpoints": 9}
    first = Training(saved_llama, data_file, checkpoints=tmp_path / "runs", **settings)
    compute, failed = first.trainer.adapter.compute_loss, []

    def fail_once(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory: planted")
        return compute(model, batch)

    first.trainer.adapter.compute_loss = fail_once  # type: ignore[method-assign]
    first.run()
    second = Training(saved_llama, data_file, checkpoints=tmp_path / "runs", **settings)
    second.trainer.prepare()
    assert second.trainer.state.micro_batch_size == 2
    assert "training.micro_batch_did_not_fit_before" in caplog.text
    other = Training(saved_llama, data_file, lora=True, **settings)
    other.trainer.prepare()
    assert other.trainer.state.micro_batch_size == 4
    start = by_step(CheckpointManager(tmp_path / "runs").store)[0]
    second.trainer.restore(start)
    assert second.trainer.state.micro_batch_size == 4


def test_rows_that_break_the_loss_are_named_by_file_and_line(
    saved_llama: Path, data_file: Path, tmp_path: Path
) -> None:
    """A real transformer whose embedding of one rare token is not a number."""
    lines = data_file.read_text().splitlines()[:12]
    lines[5] = json.dumps({"prompt": "What is this?", "completion": "\u0416 it is"})
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(lines) + "\n")
    training = Training(
        saved_llama, data, checkpoints=tmp_path / "runs", batch_size=4, num_epochs=2, lora=True
    )
    training.trainer.data_config.validation_split = 0.0
    training.trainer.prepare()
    tokenizer = training.trainer.adapter.tokenizer
    (first, *_) = tokenizer("\u0416", add_special_tokens=False)["input_ids"]
    model = training.trainer.initialize_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[first] = float("nan")  # type: ignore[operator]
    training.run()
    state = training.trainer.state
    assert state.step == state.total_steps
    assert [skipped.rows for skipped in state.skipped] == [("rows.jsonl:6",)] * 2


class Processor:
    """As those of models that see: a tokenizer, and how pictures are read."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size

    def to_dict(self) -> dict[str, Any]:
        return {"size": self.size}


def test_held_out_rows_and_how_pictures_are_read_are_part_of_the_identity(
    saved_llama: Path, data_file: Path, tmp_path: Path
) -> None:
    """Each changes its own part alone."""
    held_out = tmp_path / "held_out.jsonl"

    def parts(answer: str, size: int | None = None, more: str = "") -> dict[str, Any]:
        rows = [{"prompt": f"Reverse {n}", "completion": f"{answer} {n}"} for n in range(3)]
        held_out.write_text("\n".join(map(json.dumps, rows)) + "\n" + more)
        trainer = Training(saved_llama, data_file, eval_path=str(held_out)).trainer
        trainer.prepare()
        trainer.run_identity.key = None  # another one in each session that does not resume
        if size is not None:
            adapter: Any = trainer.adapter
            adapter.processor = Processor(adapter.tokenizer, size)
        return dict(trainer.identity()["parts"])

    plain = parts("blue")
    changed = [
        parts("blue"),
        parts("sky"),
        parts("blue", more=json.dumps({"prompt": "one", "completion": "more"})),
        parts("blue", size=1),
    ]
    assert [differing(plain, one) for one in changed] == [
        set(),
        {HELD_OUT_DATA},
        {HELD_OUT_DATA},
        {"processor"},
    ]
    assert differing(changed[3], parts("blue", size=2)) == {"processor"}


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def unprepared(lora: bool = False, **settings: Any) -> Any:
    """A trainer of a model that is not loaded, on data that is not read."""
    lora_config = LoraConfig(r=4) if lora else None
    model_config = ModelConfig(name="no/such", lora_config=lora_config)
    training = TrainingConfig(**{"mixed_precision": False, "batch_size": 4, **settings})
    trainer: Any = EnhancedTrainer(model_config, training, DataConfig(path="rows"), device="cpu")
    trainer._model = torch.nn.Linear(1, 1)
    return trainer


class Measured:
    """Stand in for a measurement: record its arguments, and the batches that it measures."""

    def __init__(
        self, *given: Any, may_halve: bool, on_smaller: Callable[[int, str], None]
    ) -> None:
        self.given, self.may_halve = given, may_halve
        on_smaller(1, "no memory")

    def measure(self, batches: Any) -> dict[str, Any]:
        return {"batches": list(batches), "may_halve": self.may_halve}


@pytest.mark.parametrize("out_of_memory", ["smaller", "stop"])
def test_an_evaluation_takes_the_size_that_has_fitted_so_far(out_of_memory: str) -> None:
    trainer = unprepared(recovery={"out_of_memory": out_of_memory})

    def batches(size: int) -> Generator[int, None, None]:
        yield from (size, size)

    trainer._data = SimpleNamespace(evaluation_batches=batches)
    polled: list[bool] = []

    def evaluate() -> Any:
        return trainer.evaluate(lambda: polled.append(True), Measured)

    may_halve = out_of_memory == "smaller"
    assert evaluate() == {"batches": [4, 4], "may_halve": may_halve}
    state = TrainingState(trainer.model, micro_batch_size=2)
    trainer._session = SimpleNamespace(state=state)
    assert evaluate() == {"batches": [2, 2], "may_halve": may_halve}
    state.micro_batch_size = 9
    assert evaluate()["batches"] == [4, 4]
    assert len(polled) == 6
    assert [(e["kind"], e["action"], e["message"]) for e in state.recoveries] == [
        ("out_of_memory", "training.evaluated_in_smaller_batches(size=1)", "no memory")
    ] * 2
    trainer.adapter.on_disk = True
    with pytest.raises(ConfigurationError, match=r"training\.model_exceeds_each_process"):
        evaluate()


def test_an_evaluation_of_the_loop_adds_the_perplexity_and_what_the_model_writes() -> None:
    trainer = unprepared(best_metric="perplexity")
    polled: list[object] = []
    loop = SimpleNamespace(poll=polled.append)
    trainer._session = SimpleNamespace(loop=loop, state="the state")
    trainer.evaluate = lambda poll: (poll(), {"eval_loss": 2.0})[1]
    numbers = {"eval_loss": 2.0, "eval_perplexity": math.exp(2.0)}
    assert trainer._evaluate_in_loop() == numbers
    trainer.answering = lambda of, poll: (poll(), {"eval_f1": float(of is trainer)})[1]
    assert trainer._evaluate_in_loop() == {**numbers, "eval_f1": 1.0}
    assert polled == ["the state"] * 3


@pytest.mark.parametrize(
    ("setting", "current", "name", "kept"),
    [
        (True, "bf16", "fp32", "fp32"),
        (True, "bf16", "bf16", "bf16"),
        (True, "fp32", "bf16", "fp32"),  # which this CPU does not compute in
        (True, "bf16", None, "bf16"),
        ("bf16", "bf16", "fp32", "bf16"),  # refused later, where it is compared
    ],
)
def test_a_precision_that_was_measured_is_kept(
    setting: object, current: str, name: str | None, kept: str
) -> None:
    trainer = unprepared(mixed_precision=setting)
    trainer.use_precision(current)
    trainer.keep_precision(name)
    holders = (trainer.adapter, trainer.strategy)
    assert {holder.precision.name for holder in holders} == {kept}


@pytest.mark.parametrize(
    ("rank", "sharding", "remembers"),
    [(0, None, True), (1, None, False), (1, Sharding.SHARD, True)],
)
def test_a_size_that_did_not_fit_is_remembered_once(
    rank: int, sharding: Sharding | None, remembers: bool, saved_llama: Path, data_file: Path
) -> None:
    """Rank 0 of replicas remembers it; the rank of a sharded model that it does not fit ends."""
    group = Group()
    group.rank = rank
    placement = Placement(group, sharding)
    trainer = Training(saved_llama, data_file, placement=placement).trainer
    trainer.prepare().loop.optimizer_step.remember_limit(2)
    assert trainer.planner.memory_limit().at_most(9) == (2 if remembers else 9)


def test_a_trainer_saves_when_and_where_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPENT_VARIABLE, "10")  # of the deadline, before a restart
    trainer = unprepared(checkpoint_seconds=300, deadline="1h", keep_checkpoints=3)
    schedule = trainer.schedule
    assert (schedule.interval_seconds, schedule.deadline_seconds) == (300, 3590.0)
    assert (trainer.checkpoints, schedule.request) == (None, None)
    made = trainer.save_checkpoints_to(tmp_path, lambda: {"note": 1}, lambda: 7.0)
    assert trainer.checkpoints is made
    assert made.store.root == tmp_path
    assert trainer.checkpoints.files() == {"note": 1}
    assert schedule.request == tmp_path / REQUEST_FILE
    assert schedule.reserve() == 7.0


def test_hooks_come_before_the_loop_and_data_has_examples() -> None:
    trainer, hook = unprepared(), Losses()
    trainer.add_hooks([hook])
    assert trainer.hooks.hooks[-1] is hook
    trainer.adapter.create_data_source = lambda *_: SimpleNamespace(num_examples=0)
    with pytest.raises(ValueError, match=r"training\.no_examples_left\(path=.*rows\)"):
        trainer.initialize_data()
    trainer._session = "made"
    with pytest.raises(ValueError, match=r"training\.hooks_added_too_late"):
        trainer.add_hooks([])
    with pytest.raises(ValueError, match=r"training\.checkpoints_chosen_too_late"):
        trainer.save_checkpoints_to(Path("elsewhere"))


class Curious(Extension):
    """Looks at the trainer's state when it is given a model, data, or has to be saved."""

    def __init__(self, trainer: EnhancedTrainer, when: str) -> None:
        self.trainer, self.when, self.steps = trainer, when, list[int]()

    @property
    def name(self) -> str:
        return "curious"

    def _look(self, when: str) -> None:
        if when == self.when:
            self.steps.append(self.trainer.state.step)

    def attach(self, *_: Any) -> None:
        self._look("attach")

    def inspect(self, *_: Any) -> None:
        self._look("inspect")

    def state_dict(self) -> dict[str, Any]:
        self._look("state_dict")
        return {}


@pytest.mark.parametrize("when", ["attach", "inspect"])
def test_a_part_that_is_being_built_cannot_use_later_ones(
    when: str, saved_llama: Path, data_file: Path
) -> None:
    trainer = Training(saved_llama, data_file).trainer
    curious = Curious(trainer, when)
    trainer.add_hooks([curious])
    for _ in range(2):  # as a cell that is run again
        with pytest.raises(ValueError, match=r"training\.part_used_too_early"):
            trainer.prepare()
    curious.when = "never"
    assert trainer.prepare().loop.total_steps > 0
    assert curious.steps == []


def test_what_is_saved_may_depend_on_the_state(saved_llama: Path, data_file: Path) -> None:
    trainer = Training(saved_llama, data_file).trainer
    curious = Curious(trainer, "state_dict")
    trainer.add_hooks([curious])
    trainer.prepare()
    assert curious.steps == [0]


def test_a_training_that_ends_closes_what_it_has_opened() -> None:
    """With whether the run is over: what one that may be resumed needs is kept."""
    trainer, closed = unprepared(), list[bool | str]()
    state = SimpleNamespace(model=torch.nn.Linear(1, 1), step=3)

    def run(_: object) -> None:
        state.step += 2
        if state.step == 5:
            raise StopSignal(signal.SIGTERM)

    loop = SimpleNamespace(run=run, total_steps=7)
    trainer._session = SimpleNamespace(state=state, loop=loop)
    trainer.checkpoints = SimpleNamespace(close=lambda: closed.append("checkpoints"))
    trainer.strategy.close = closed.append
    with pytest.raises(StopSignal):
        trainer.train()
    assert closed == ["checkpoints", False]
    trainer.train()
    assert closed[2:] == ["checkpoints", True]
