"""Ranks are started, joined and ended by rank 0; what they cannot train is refused."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.launcher import LaunchedProcess
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training import trainer_factory
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed import group as group_module
from infrastructure.training.distributed import members
from infrastructure.training.distributed import ranks as ranks_module
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.run_facts import compare
from infrastructure.training.trainer_factory import TrainerFactory, num_processes_for
from tests.slow import slow
from tests.training.distributed.small_groups import small_config, trained, weights_of
from tests.training.seeing_models import (
    save_llava,
    save_text_model,
    save_tower,
    write_colours,
)

LORA = {"model.lora_config": {"r": 4, "dropout": 0.0}}
# Sums in another order, through twenty steps of AdamW, on losses of about 5.
CLOSE = {"rtol": 2e-5, "atol": 1e-5}


class Watch(Observer):
    """Remembers which processes there were, and may kill one."""

    def __init__(self, trainer: EnhancedTrainer, kill_at: int = -1) -> None:
        self.trainer, self.kill_at = trainer, kill_at
        self.pids: list[int] = []

    def step_end(self, state: TrainingState) -> None:
        ranks = self.trainer.placement.ranks
        assert isinstance(ranks, Ranks)
        assert ranks._started is not None
        self.pids = [process.pid for process in ranks._started.processes.values()]
        if state.step == self.kill_at:
            os.kill(self.pids[-1], signal.SIGKILL)


def watched(trainer: EnhancedTrainer, kill_at: int = -1) -> Watch:
    """Add a watch to a trainer whose loop is there already."""
    watch = Watch(trainer, kill_at)
    trainer.hooks.hooks.append(watch)
    return watch


@pytest.mark.parametrize(
    ("num_processes", "settings"),
    [
        (2, {"data.packing": True}),
        (3, {**LORA, "data.packing": False, "training.learning_rate": 1e-2}),
    ],
)
@slow
def test_several_processes_learn_what_one_learns(
    num_processes: int, settings: dict[str, object], tmp_path: Path, saved_llama: Path
) -> None:
    """The last step of each epoch has two examples: with three processes one has none."""
    alone, one = trained(small_config(tmp_path, saved_llama, **settings))
    config = small_config(tmp_path, saved_llama, num_processes=num_processes, **settings)
    watches: list[Watch] = []
    together, several = trained(config, lambda trainer: watches.append(watched(trainer)))
    assert len(together) == 20
    assert together[-1] < 0.9 * together[0]  # it learns
    torch.testing.assert_close(torch.tensor(together), torch.tensor(alone), **CLOSE)
    torch.testing.assert_close(weights_of(several), weights_of(one), rtol=0.0, atol=1e-4)
    assert several.identity()["world_size"] == num_processes
    assert len(watches[0].pids) == num_processes - 1
    assert not any(map(psutil.pid_exists, watches[0].pids))


@pytest.mark.parametrize("has_tower", [True, False], ids=["a tower on text", "a model that sees"])
@slow
def test_rows_with_pictures_are_learnt_as_by_one(has_tower: bool, tmp_path: Path) -> None:
    """The projector's phase is in it; each process makes pixels of its own rows."""
    settings: dict[str, object] = {
        "data.path": str(write_colours(tmp_path)),
        "training.max_steps": 6,
    }
    if has_tower:
        tower = save_tower(tmp_path / "tower")
        settings["training.enabled_extensions"] = ["multimodal"]
        settings["training.multimodal.vision_tower"] = str(tower)
    model = (save_text_model if has_tower else save_llava)(tmp_path / "model")
    alone, one = trained(small_config(tmp_path, model, **settings))
    together, several = trained(small_config(tmp_path, model, num_processes=2, **settings))
    assert together[-1] < together[0]
    torch.testing.assert_close(torch.tensor(together), torch.tensor(alone), **CLOSE)
    torch.testing.assert_close(weights_of(several), weights_of(one), rtol=0.0, atol=1e-4)


@slow
def test_a_rank_that_is_killed_ends_the_training_after_it_is_saved(
    tmp_path: Path, saved_llama: Path
) -> None:
    config = small_config(tmp_path, saved_llama, num_processes=3)
    checkpoints = tmp_path / "checkpoints"
    watches: list[Watch] = []

    def prepare(trainer: EnhancedTrainer) -> None:
        watches.append(watched(trainer, kill_at=3))

    started = time.monotonic()
    with pytest.raises(ProcessLostError) as raised:
        trained(config, prepare, checkpoint_directory=checkpoints)
    assert time.monotonic() - started < 300  # gloo itself would wait for ten minutes
    pids = watches[0].pids
    rank = f"training.rank_of_size_with_pid(rank=2, size=3, pid={pids[-1]})"
    killed = "core.killed_by_signal(signal=SIGKILL)"
    assert f"training.rank_process_gone(name={rank}, fate={killed}" in str(raised.value)
    assert step_of(CheckpointManager(checkpoints).newest()) == 3
    assert not any(map(psutil.pid_exists, pids))
    assert not torch.distributed.is_initialized()


def test_a_rank_that_cannot_begin_gives_the_reason(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "RANK_MODULE", "no_such_module_anywhere")
    with pytest.raises(ProcessLostError, match=r"training\.rank_process_gone.*rank=1, .*code=1"):
        trained(small_config(tmp_path, saved_llama, num_processes=2))


def test_more_processes_than_gpus_are_refused(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, saved_llama, num_processes=3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    on_gpus = torch.device("cuda")
    with pytest.raises(
        ConfigurationError, match=r"training\.fewer_gpus_than_processes.*requested=3.*num_gpus=2"
    ):
        num_processes_for(config, on_gpus)
    assert num_processes_for(config, torch.device("cpu")) == 3
    config.num_processes = 2
    assert num_processes_for(config, on_gpus) == 2
    config.num_processes = "auto"
    assert num_processes_for(config, on_gpus) == 2
    assert num_processes_for(config, torch.device("cpu")) == 1


def test_a_launcher_decides_how_many_there_are(tmp_path: Path, saved_llama: Path) -> None:
    launched_as = LaunchedProcess(0, 4, 0, "10.0.0.1")
    config = small_config(tmp_path, saved_llama)
    for requested in (1, "auto", 4):
        config.num_processes = requested
        assert num_processes_for(config, torch.device("cpu"), launched_as) == 4
    config.num_processes = 2
    with pytest.raises(
        ConfigurationError, match=r"training\.launcher_started_other_number.*size=4"
    ):
        num_processes_for(config, torch.device("cpu"), launched_as)


def test_parts_of_ones_own_cannot_be_given_to_other_processes(
    tmp_path: Path, saved_llama: Path
) -> None:
    own = TrainerFactory().for_run(small_config(tmp_path, saved_llama)).strategy
    config = small_config(tmp_path, saved_llama, num_processes=2)
    with pytest.raises(
        ConfigurationError, match=r"training\.own_parts_in_one_process.*given=training_strategy"
    ):
        TrainerFactory().for_run(config, training_strategy=own)


CPU = torch.device("cpu")


def test_a_run_has_the_ranks_of_its_configuration_or_its_launcher(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, saved_llama, num_processes=2, process_timeout="2min")
    for launched in (None, LaunchedProcess(0, 3, 0, "127.0.0.1")):
        monkeypatch.setattr(trainer_factory, "launched_process", lambda found=launched: found)
        config.num_processes = 2 if launched is None else 3
        ranks = TrainerFactory().for_run(config).placement.ranks
        assert isinstance(ranks, Ranks)
        assert (ranks.config, ranks.device, ranks.launched_as) == (config, CPU, launched)
        assert (ranks.size, ranks.limit_seconds) == (config.num_processes, 120.0)


def test_an_extension_that_one_process_has_alone_is_refused(
    tmp_path: Path, saved_llama: Path
) -> None:
    class Own(Extension):
        """One that the others could not build."""

    trainer = TrainerFactory().for_run(small_config(tmp_path, saved_llama, num_processes=2))
    with pytest.raises(
        ConfigurationError, match=r"training\.extension_in_one_process.*extension=Own"
    ):
        trainer.add_hooks([Own()])
    with pytest.raises(
        ConfigurationError, match=r"training\.own_loop_has_one_process.*num_processes=2"
    ):
        trainer.train_step([])


@pytest.mark.parametrize("differs", [None, "weights", "data"])
def test_a_rank_that_has_loaded_something_else_names_it(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch, differs: str | None
) -> None:
    """Frozen weights by their values, data by its rows."""
    trainer = TrainerFactory().for_run(small_config(tmp_path, saved_llama))
    session = trainer.prepare()
    sent: list[dict[str, Any]] = []

    class OfFirst(group_module.Group):
        def decide(self, make: Callable[[], Any]) -> Any:
            sent.append(made := make())
            return {**made, **({} if differs is None else {differs: ["of rank 0"]})}

    if differs is None:
        compare(OfFirst(), session)
        before = sent[-1]
        data: Any = trainer.initialize_data()
        monkeypatch.setattr(type(data), "fingerprint", "other rows")
        compare(OfFirst(), session)
        assert {name for name in before if before[name] != sent[-1][name]} == {"data"}
        return
    code = rf"training\.rank_loaded_differently\(what={differs}\)"
    with pytest.raises(ValueError, match=code):
        compare(OfFirst(), session)


def test_a_process_of_a_launcher_other_than_the_first_begins_no_run(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = LaunchedProcess(1, 2, 1, "127.0.0.1")
    monkeypatch.setattr(trainer_factory, "launched_process", lambda: launched)
    with pytest.raises(
        ConfigurationError, match=r"training\.not_first_launched_process\(rank=1, size=2\)"
    ):
        TrainerFactory().for_run(small_config(tmp_path, saved_llama))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_processes": 2, "device": "cuda:1"},
            r"config\.processes_on_one_named_gpu.*num_processes=2, device=cuda:1",
        ),
        (
            {"num_processes": 3, "cuda_visible_devices": "0,1"},
            r"config\.too_few_visible_gpus.*num_processes=3, count=2",
        ),
    ],
)
def test_what_cannot_give_each_process_a_gpu_is_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DeploymentConfig(**settings).check_supported()


def test_there_is_at_least_one_process() -> None:
    with pytest.raises(
        ConfigurationError, match=r"config\.wrong_value\(setting=num_processes, .*value=0"
    ):
        DeploymentConfig(num_processes=0)


class Group:
    """What rank 0 makes of the others, without any."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.arguments, self.options = arguments, options
        self.ends: list[tuple[str, str | None]] = []
        self.threads = torch.get_num_threads()

    def leave(self, reason: str | None) -> None:
        self.ends.append(("left", reason))

    def close(self, reason: str | None) -> None:
        self.ends.append(("closed", reason))


class Started:
    """The processes of other ranks."""

    made: ClassVar["list[Started]"] = []

    def __init__(self, size: int, num_threads: int | None) -> None:
        self.size, self.num_threads = size, num_threads
        self.member = members.Member(0, size, 0, torch.distributed.HashStore())
        self.processes: dict[int, object] = {}
        self.patience: list[float] = []
        Started.made.append(self)

    def end(self, patience_seconds: float) -> None:
        self.patience.append(patience_seconds)


@pytest.fixture
def without_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Started, "made", [])
    monkeypatch.setattr(ranks_module, "StartedRanks", Started)
    monkeypatch.setattr(ranks_module, "JoinedGroup", Group)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("without_others")
@pytest.mark.parametrize(
    ("device", "is_launched", "threads", "given"),
    [("cpu", False, 2, 2), ("cpu", True, 6, None), ("cuda", False, 6, None)],
)
def test_ranks_share_the_cores_of_a_cpu_while_they_train(
    monkeypatch: pytest.MonkeyPatch, device: str, is_launched: bool, threads: int, given: int | None
) -> None:
    """And each training of one process after another has a group of its own."""
    launched = LaunchedProcess(0, 3, 4, "127.0.0.1") if is_launched else None
    member = members.Member(0, 3, 4, torch.distributed.HashStore())
    monkeypatch.setattr(ranks_module, "by_launcher", lambda _: member)
    ranks = Ranks(DeploymentConfig(), 3, torch.device(device), launched, limit_seconds=7.0)
    welcomed: list[object] = []
    groups: list[Any] = []
    for reason in ("planted", None):
        group: Any = ranks.join(lambda config, group: welcomed.append((config, group)))
        assert ranks.join() is group
        groups.append(group)
        assert group.threads == threads
        assert group.arguments[1:] == (0, 3, torch.device(device))
        assert group.options["local_rank"] == (4 if is_launched else 0)
        assert group.options["limit_seconds"] == 7.0
        assert group.options["watch"] == ranks._refuse_dead
        store: Any = group.arguments[0]
        assert members.Member(1, 3, 1, store).called() == (device, 7.0)
        ranks.close(reason)
        ranks.close("again")
        assert group.ends == [("left", reason), ("closed", reason)]
        assert torch.get_num_threads() == 6
    assert welcomed == [(ranks.config, group) for group in groups]
    assert groups[0] is not groups[1]
    assert [(one.size, one.num_threads) for one in Started.made] == [(3, given)] * (
        0 if is_launched else 2
    )
    assert all(one.patience == [ranks_module.PATIENCE_SECONDS] for one in Started.made)


@pytest.mark.usefixtures("without_others")
def test_where_the_others_cannot_be_welcomed_they_get_the_reason_and_end() -> None:
    ranks = Ranks(DeploymentConfig(), 3, torch.device("cpu"))
    welcomed: list[Any] = []

    def refuse(_: object, group: object) -> None:
        welcomed.append(group)
        raise ConfigurationError("planted")

    with pytest.raises(ConfigurationError):
        ranks.join(refuse)
    assert welcomed[0].ends == [("left", "planted"), ("closed", "planted")]
    assert torch.get_num_threads() == 6
    assert ranks.group is None


@pytest.mark.usefixtures("without_others")
def test_who_never_joined_is_not_waited_for() -> None:
    ranks = Ranks(DeploymentConfig(), 3, torch.device("cpu"))
    ranks.launch()
    ranks.launch()
    ranks.close()
    assert [one.patience for one in Started.made] == [[0.0]]


@pytest.mark.usefixtures("without_others")
@pytest.mark.parametrize(
    ("has_group", "reason", "expected"),
    [
        (True, "its disk is full", "failed(name={name}, reason=its disk is full)"),
        (True, "", "process_gone(name={name}, fate=killed, how_to_resume={how})"),
        (False, "its disk is full", "process_gone(name={name}, fate=killed, how_to_resume={how})"),
    ],
)
def test_a_process_that_has_ended_is_named_with_the_reason_that_it_gave(
    has_group: bool, reason: str, expected: str
) -> None:
    ranks: Any = Ranks(DeploymentConfig(), 3, torch.device("cpu"))
    ranks._refuse_dead()  # none is started yet
    ranks.launch()
    processes = {
        rank: SimpleNamespace(pid=10 + rank, fate=lambda fate=fate: fate)
        for rank, fate in ((1, None), (2, "killed"))
    }
    Started.made[0].processes.update(processes)
    if has_group:
        ranks.group = SimpleNamespace(reason_of={2: reason}.get)
    with pytest.raises(ProcessLostError) as caught:
        ranks._refuse_dead()
    name = "training.rank_of_size_with_pid(rank=2, size=3, pid=12)"
    how = "training.same_command_resumes()"
    assert str(caught.value) == f"training.rank_{expected.format(name=name, how=how)}"
