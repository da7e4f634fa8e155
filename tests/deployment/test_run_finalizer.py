"""How a run ends: in which order, with which patience, and what of it summary.json keeps."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.backup.repair.run_files_repair import SEAL
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import LOSSES
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import CheckpointError
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.data.readers.sources import data_files_hash
from infrastructure.deployment import run_finalizer
from infrastructure.deployment.run_finalizer import (
    CompilingObserver,
    RunFinalizer,
    describe_model,
    last_mlp_form,
    record_rows_of,
    record_run,
    summarise,
    unused_gpus,
)
from infrastructure.evaluation.held_out import HeldOut
from infrastructure.models.packed_attention import ATTENTION_NAME
from infrastructure.optimization.compiling import CompileDecision
from infrastructure.run.directory import RunDirectory, plan_run
from infrastructure.run.finalize import read_summary
from infrastructure.run.timings import Stages
from infrastructure.run.trained_rows import record_trained_rows, trained_rows
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager, load_values
from infrastructure.training.core import precision, product_choice
from infrastructure.training.core.product_choice import threads_restored
from infrastructure.training.core.state import StopReason
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
from infrastructure.training.placement import Placement
from infrastructure.training.setup import compute_choice
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark
from tests.deployment.runs import deploy, small_config

PATIENCE = BackupConfig(place="somewhere", finish_seconds=70.0, emergency_seconds=7.0)


def made_of(**values: Any) -> Any:
    return SimpleNamespace(**values)


class Ending:
    """A finalizer of a training that is none, and what it did, in order."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, place: bool = True) -> None:
        self.done: list[Any] = []
        self.lines: list[str] = []
        self.now = 0.0
        self.run = RunDirectory(folder)
        self.problem: str | None = None
        state = SimpleNamespace(
            step=12,
            stop_reason=StopReason.DEADLINE,
            position=SimpleNamespace(epoch=3),
            best_is_greater=True,
        )
        training = SimpleNamespace(
            ends_with_best=True, best_metric="f1", max_steps=12, deadline=90.0
        )
        self.trainer = made_of(
            state=state,
            training_config=training,
            model_config=SimpleNamespace(name="a-model", lora_config=None),
            adapter=SimpleNamespace(on_disk=False, save=self._save),
            device=torch.device("cpu"),
            strategy=SimpleNamespace(run_parts=self._run_parts),
            schedule=SimpleNamespace(seconds_to_copy=self._seconds_to_copy),
            initialize_model=lambda: "the model",
        )
        copies = made_of(
            has_place=place,
            complete=self._complete,
            wait=lambda seconds: self.did("wait", 5.0, seconds),
            problem=lambda: self.problem,
            line=lambda: "how the copies stand",
            facts=lambda: {"text": f"after {len(self.done)}"},
            close=lambda: self.did("close copies", 1.0),
        )
        forecast = made_of(compared=lambda seconds: [{"was": seconds}])
        self.finalizer = RunFinalizer(
            run=self.run,
            trainer=self.trainer,
            before=HeldOut({"eval_loss": 4.0}),
            copies=copies,
            forecast=forecast,
            stages=Stages(lambda: self.now),
            patience=PATIENCE,
            report=self._report(),
            price_per_hour="36",
            started=0.0,
        )
        patch.setattr(run_finalizer, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(run_finalizer, "take_best", self._take_best)
        patch.setattr(run_finalizer, "trained_model", lambda _: None)
        patch.setattr(run_finalizer, "measure", self._measure)
        patch.setattr(run_finalizer, "summarise", self._summarise)
        patch.setattr(run_finalizer, "write_report_of", lambda run: self.did("report"))
        patch.setattr(run_finalizer, "closing_lines", lambda *_: ["the result"])
        patch.setattr(run_finalizer, "advice_at_end", self._advise)
        self.advised: tuple[Any, ...] = ()
        self.advised_as: dict[str, Any] = {}

    def did(self, what: str, seconds: float = 0.0, *more: Any) -> None:
        self.now += seconds
        self.done.append((what, *more) if more else what)

    def _take_best(self, *given: Any) -> int:
        self.did("best", 0.0, *given)
        return 9

    def _report(self) -> Any:
        waiting: Callable[..., Any] = Stages(lambda: 0.0).stage
        report: Any = lambda line: self.lines.append(line)  # noqa: E731
        report.waiting = lambda _: waiting("evaluate")
        return report

    def _run_parts(self, trainer: Any) -> Any:
        assert trainer is self.trainer
        return SimpleNamespace(save=lambda folder: [f"no part in {folder.name}"])

    def _save(self, folder: Path) -> None:
        folder.mkdir()
        self.did("save", 10.0)

    def _measure(self, trainer: Any, count: Any) -> HeldOut:
        self.did("measure", 20.0)
        return HeldOut({"eval_loss": 1.0})

    def _complete(self, seconds: float, record: Callable[[], object]) -> None:
        self.did("complete", 30.0, seconds)
        record()
        assert self.kept()["status"] == "finished", "also while it is confirmed"

    def _seconds_to_copy(self, reason: Any, patience: float) -> float:
        assert reason is StopReason.DEADLINE
        return patience + 1

    def _summarise(self, run: Any, trainer: Any, *more: Any) -> dict[str, Any]:
        seconds, before, after, error = more
        assert before is self.finalizer.before
        is_over = {"status": "finished"} if after else {"status": "failed" if error else "stopped"}
        numbers = {"seconds": seconds, "after": after and after.metrics, "signal": None}
        return {**is_over, **numbers, "steps": 12, "reason": "why", "paths": {}}

    def _advise(self, *given: Any, **named: Any) -> list[dict[str, str]]:
        self.advised, self.advised_as = given, named
        return [{"text": "train longer", "command": "temper"}]

    def kept(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self.run.summary_file.read_text())
        return kept


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(tmp_path, monkeypatch)


def test_a_finished_run_is_saved_measured_and_confirmed(ending: Ending) -> None:
    ending.problem = "its copy is not safe"
    summary = ending.finalizer.finish()
    best = ("best", "the model", ending.run.checkpoints, 12)
    confirmed = ("complete", 70.0)
    steps = [best, "save", "measure", "report", confirmed, "report", "report"]
    assert ending.done == steps
    assert ending.kept()["final_step"] == summary["final_step"] == 9
    assert summary["after"] == {"eval_loss": 1.0}
    assert summary["seconds"] == 30.0, "what is asked first, without the wait for the copy"
    assert summary["forecast"] == [{"was": 30.0}]
    assert summary["cost"]["seconds"] == 60.0, "all of it costs"
    assert summary["cost"]["amount"] == 0.6
    assert summary["backup"] == {"text": "after 6"}, "as it stands when all is confirmed"
    assert summary["advice"] == [{"text": "train longer", "command": "temper"}]
    run, metric, step, epoch, before, after = ending.advised
    assert (run, metric, step, epoch) == (ending.run, "f1", 9, 3)
    assert (before["eval_loss"], after["eval_loss"]) == (4.0, 1.0)
    assert ending.advised_as == {
        **{"best_is_greater": True, "is_cut_short": True, "freezes_new_weights": False}
    }
    assert [(stage["name"], stage["seconds"]) for stage in summary["stages"]] == [
        *[("save", 10.0), ("evaluate", 20.0), ("back up", 30.0)]
    ]
    ending.finalizer.show_end()
    assert ending.lines[-2:] == ["the result", "its copy is not safe"]
    assert f"note: no part in {ending.run.path.name}" in ending.lines


def test_without_a_place_nothing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(tmp_path, monkeypatch, place=False)
    ending.trainer.training_config.ends_with_best = False
    summary = ending.finalizer.finish()
    assert ending.done == ["save", "measure", "report"]
    assert "final_step" not in summary


def test_a_best_model_that_is_the_last_one_is_not_named(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_finalizer, "take_best", lambda *_: 12)
    assert "final_step" not in ending.finalizer.finish()


@pytest.mark.parametrize(
    ("name", "lora", "freezes"),
    [("embedded", {"r": 2}, True), ("embedded", None, False), ("other", {"r": 2}, False)],
)
def test_advice_is_about_the_model_that_is_kept(
    name: str, lora: object, freezes: bool, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending.trainer.model_config = SimpleNamespace(name=name, lora_config=lora)
    ending.trainer.training_config.ends_with_best = False
    ending.trainer.training_config.max_steps = 13
    ending.trainer.state.best_is_greater = False
    ending.finalizer.finish()
    assert ending.advised[2] == 12, "the last step"
    assert ending.advised_as == {
        **{"best_is_greater": False, "is_cut_short": False, "freezes_new_weights": freezes}
    }
    monkeypatch.setattr(run_finalizer, "advice_at_end", lambda *_, **__: [])
    shutil.rmtree(ending.run.final)
    assert "advice" not in ending.finalizer.finish()


@pytest.mark.parametrize(
    ("reason", "deadline", "in_notebook", "num_lines"),
    [
        (StopReason.DEADLINE, 90.0, False, 1),
        (StopReason.DEADLINE, None, False, 0),
        (StopReason.DEADLINE, 90.0, True, 0),
        (StopReason.SIGNAL, 90.0, False, 0),
    ],
)
def test_a_deadline_that_applies_again_is_noted(
    reason: StopReason,
    deadline: float | None,
    in_notebook: bool,
    num_lines: int,
    ending: Ending,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending.trainer.state.stop_reason = reason
    ending.trainer.training_config.deadline = deadline
    monkeypatch.setattr(run_finalizer, "in_notebook_kernel", lambda: in_notebook)
    again = "deployment.deadline_applies_again(duration=1 min 30 s)"
    assert ending.finalizer._deadline_lines() == [again] * num_lines


def test_an_agent_shows_the_end_itself(ending: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def leave(*of: object) -> bool:
        given.append(of)
        return True

    monkeypatch.setattr(run_finalizer, "left_to_agent", leave)
    ending.finalizer.finish()
    ending.lines.clear()
    ending.finalizer.show_end()
    assert given == [(["the result"], None)]
    assert ending.lines == []


def test_a_saved_model_that_answers_otherwise_does_not_stay(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(folder: Path, trained: object) -> list[str]:
        raise CheckpointError("it answers otherwise")

    monkeypatch.setattr(run_finalizer, "trained_model", lambda _: "trained")
    monkeypatch.setattr(run_finalizer, "check_saved", differs)
    with pytest.raises(CheckpointError):
        ending.finalizer.finish()
    assert not ending.run.final.exists()
    monkeypatch.setattr(run_finalizer, "check_saved", lambda folder, trained: [f"{trained}, read"])
    ending.finalizer.finish()
    assert ending.run.final.is_dir()
    assert "trained, read" in ending.lines


def test_a_stopped_run_waits_as_long_as_an_emergency_allows(ending: Ending) -> None:
    summary = ending.finalizer.stopped()
    assert ending.done == ["report", ("wait", 8.0), "report"]
    assert (summary["status"], summary["forecast"], "advice" in summary) == ("stopped", [], False)
    assert summary["cost"]["seconds"] == 5.0
    assert ending.kept()["backup"] == {"text": "after 2"}
    ending.finalizer.show_end()
    assert ending.lines[0].startswith("deployment.stopped_at_step(step=12, reason=why, ")
    assert ending.lines[0].endswith("backup=how the copies stand)")
    assert [line.partition("(")[0] for line in ending.lines[2:]] == ["run.total_cost"]
    assert "1 min 30 s" in ending.lines[1], "the next session has the deadline, too"


def test_a_failed_run_keeps_its_error_and_its_helpers_are_ended(ending: Ending) -> None:
    ending.finalizer.failed(OSError("full"))
    assert ending.kept()["status"] == "failed"
    assert SEAL not in ending.kept()
    ending.finalizer.clean_up()
    assert SEAL in ending.kept()
    assert ending.done == ["report", "close copies"]
    [stage] = ending.kept()["stages"]
    assert (stage["name"], stage["seconds"]) == ("clean up", 1.0)


def test_a_run_that_came_to_nothing_is_cleaned_up_and_leaves_no_summary(ending: Ending) -> None:
    ending.finalizer.clean_up()
    assert ending.done == ["close copies"]
    assert not ending.run.summary_file.exists()
    ending.finalizer.show_end()
    assert ending.lines == []


@pytest.mark.parametrize("price", ["2 EUR", None])
def test_the_cost_is_of_all_sessions_and_grows_while_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, price: str | None
) -> None:
    """Each session writes its summary more than once, the time that it takes to end included."""
    monkeypatch.setattr(run_finalizer, "summarise", lambda *_: {"seconds": 1.0})
    monkeypatch.setattr(run_finalizer, "write_report_of", lambda run: None)
    run = RunDirectory(tmp_path)
    found = []
    for times in ((100.0, 160.0), (1000.0, 1030.0), (7.0, 11.0)):
        passed = SimpleNamespace(seconds=0.0)
        others: Any = {
            "trainer": SimpleNamespace(state=None),
            "before": None,
            "copies": SimpleNamespace(facts=dict),
            "forecast": None,
            "stages": SimpleNamespace(total_seconds=lambda of=passed: of.seconds, records=list),
            "patience": None,
            "report": None,
        }
        finalizer = RunFinalizer(run, **others, price_per_hour=price)
        for passed.seconds in times:
            finalizer.failed(RuntimeError("planted"))
            found.append(read_summary(run).get("cost", {}))
    seconds = [100.0, 160.0, 1160.0, 1190.0, 1197.0, 1201.0]
    if price is None:
        assert found == [{}] * len(seconds)
    else:
        assert [cost["seconds"] for cost in found] == seconds
        assert [cost["amount"] for cost in found] == pytest.approx([2 * s / 3600 for s in seconds])


QUESTION = {"prompt": "Reverse abc", "expected": "cba"}
BEFORE = HeldOut({"eval_loss": 4.0}, {"all": 0.0}, 8, {**QUESTION, "written": ""})
AFTER = HeldOut({"eval_loss": 1.0}, {"all": 0.75}, 8, {**QUESTION, "written": "cba\nok"})


@pytest.fixture
def config(saved_llama: Path, tmp_path: Path) -> DeploymentConfig:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(10, 30)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return DeploymentConfig(
        model={"name": str(saved_llama)},
        data={"path": str(path), "max_length": 64, "num_workers": 0},
        training={"batch_size": 4, "max_steps": 2},
        cache={"directory": str(tmp_path / "cache")},
        output_dir=str(tmp_path / "runs"),
        device="cpu",
    )


@pytest.fixture
def trainer(config: DeploymentConfig) -> EnhancedTrainer:
    made = EnhancedTrainer(
        config.model, config.training, config.data, device="cpu", cache_config=config.cache
    )
    made.prepare()
    return made


def test_a_run_knows_what_the_run_that_it_began_from_had_learnt(
    config: DeploymentConfig, saved_llama: Path, tmp_path: Path
) -> None:
    first, second = (RunDirectory(tmp_path / "runs" / name) for name in ("first", "second"))
    shutil.copytree(saved_llama, first.final)
    first.run_file.write_text("{}")
    second.path.mkdir()
    record_trained_rows(first, np.array([3, 8], dtype=np.uint64))
    config.model.name = str(first.final)
    record_rows_of(second, config, np.array([5, 8], dtype=np.uint64))
    known = trained_rows(second)
    assert known is not None
    assert len(known.hashes) == 3
    assert known.num_among(np.array([3, 5, 8], dtype=np.uint64)) == 3


def test_run_json_records_how_the_run_came_to_be(
    config: DeploymentConfig,
    trainer: EnhancedTrainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = "hf_" + "a1B2" * 9
    monkeypatch.setattr("sys.argv", ["temper", "train", "my rows.jsonl", f"--token={secret}"])
    run = plan_run(tmp_path / "runs", "small")
    run.path.mkdir(parents=True)
    choices: list[Any] = [
        SimpleNamespace(decided=lambda name=name: {name: {"value": name}}) for name in "ab"
    ]
    record_run(run, config, trainer, choices)
    text = run.run_file.read_text()
    record = json.loads(text)
    assert secret not in text
    assert record["command"].startswith("temper train 'my rows.jsonl'")
    assert record["decided"] == {"a": {"value": "a"}, "b": {"value": "b"}}
    assert (record["precision"], record["num_threads"]) == (
        *(trainer.precision.name, torch.get_num_threads()),
    )
    assert (record["hardware"]["device"], record["hardware"]["processes"]) == ("cpu", 1)
    assert record["model"] == json.loads(json.dumps(trainer.adapter.describe()))
    assert record["data"]["num_examples"] == trainer.initialize_data().num_examples
    assert record["data"]["files_sha256"] == data_files_hash(config.data)
    assert len(record["data"]["preview"]) == 2
    assert "losses" not in record["data"]
    known = trained_rows(run)
    assert known is not None
    assert len(known.hashes) == record["data"]["num_examples"]
    batch_size = record["config"]["training.batch_size"]
    assert batch_size == {"value": 4, "source": "keyword training.batch_size"}
    assert DeploymentConfig.from_dict(record["configuration"]).training.max_steps == 2
    assert record["data"]["fingerprint"] == trainer.initialize_data().fingerprint
    assert "⟦" in record["data"]["preview"][0]
    assert record["attention"] == trainer.identity()["attention"]
    assert record["attention"].startswith(ATTENTION_NAME)
    assert record["last_mlp"] == last_mlp_form(trainer) == "learnt tokens"
    assert (run.tokenizer / "tokenizer.json").is_file()
    assert run.quarantine_file.is_file()


def test_a_measured_precision_is_recorded_and_kept_by_whoever_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {("bf16", 1): 2.0, ("fp32", 1): 1.0}
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(compute_choice, "WORTH_IT", 2)
    monkeypatch.setattr(compute_choice, "_compared", lambda *of, halves: dict(measured))
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 1.0, "fp32": 2.0})
    monkeypatch.setenv(THREADS_VARIABLE, "1")
    path, lines = deploy(verbose(tmp_path, deadline="0.001s", max_steps=2))
    record = json.loads((path / "run.json").read_text())
    assert (record["precision"], record["attention"]) == ("fp32", ATTENTION_NAME)
    assert record["decided"]["training.mixed_precision"]["value"] == "fp32"
    choice = "training.compute_choice_measured(chosen=training.mixed_precision=fp32, "
    assert any(line.startswith(choice) for line in lines)
    measured["bf16", 1] = 0.1  # now it would be the other one
    again, lines = deploy(small_config(tmp_path, max_steps=2))
    assert again == path
    assert any(is_model_line(line, "fp32") for line in lines)
    assert json.loads((path / "summary.json").read_text())["status"] == "finished"


def verbose(folder: Path, **training: Any) -> DeploymentConfig:
    """A run that shows what it has decided, too."""
    config = small_config(folder, **training)
    config.verbose = True
    return config


def is_model_line(line: str, precision: str) -> bool:
    return line.startswith("deployment.model_line(") and f" precision={precision}, " in line


def test_a_product_that_is_slower_in_bf16_decides_on_a_new_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"bf16": 2.0, "fp32": 1.0}
    for name in ("fp32", "bf16"):
        (tmp_path / name).mkdir()
    probed: list[str] = []
    real = StandardModelAdapter._probe

    def probe(adapter: StandardModelAdapter, model: torch.nn.Module) -> None:
        is_half = torch.is_autocast_enabled("cpu")
        probed.append("bf16" if is_half else "fp32")
        real(adapter, model)

    monkeypatch.setattr(StandardModelAdapter, "_probe", probe)
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(product_choice, "product_seconds", lambda: dict(seconds))
    path, lines = deploy(verbose(tmp_path / "fp32", deadline="0.001s", max_steps=2))
    record = json.loads((path / "run.json").read_text())
    assert record["precision"] == record["decided"]["training.mixed_precision"]["value"] == "fp32"
    assert any("mixed_precision" in line and "fp32" in line for line in lines)
    assert any(is_model_line(line, "fp32") for line in lines)
    seconds["fp32"] = 3.0  # now it would be the other one
    assert deploy(small_config(tmp_path / "fp32", max_steps=2))[0] == path
    assert json.loads((path / "summary.json").read_text())["status"] == "finished"
    assert set(probed) == {"fp32"}
    probed.clear()
    path, _ = deploy(small_config(tmp_path / "bf16", deadline="0.001s", max_steps=2))
    seconds["fp32"] = 1.0
    assert deploy(small_config(tmp_path / "bf16", max_steps=2))[0] == path
    record = json.loads((path / "run.json").read_text())
    assert record["precision"] == "bf16"
    assert "training.mixed_precision" not in record["decided"]
    assert json.loads((path / "summary.json").read_text())["status"] == "finished"
    assert set(probed) == {"bf16"}


def test_a_run_keeps_its_number_of_threads_and_leaves_the_process_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {("fp32", 2): 1.0, ("fp32", 1): 0.4}
    monkeypatch.setattr(precision, "best_precision", lambda device: "fp32")
    monkeypatch.setattr(compute_choice, "WORTH_IT", 2)
    monkeypatch.setattr(compute_choice, "LONG_SECONDS", math.inf)  # on a busy machine, too
    monkeypatch.setattr(compute_choice, "_compared", lambda *of, halves: dict(measured))
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    with threads_restored():
        torch.set_num_threads(2)
        path, lines = deploy(verbose(tmp_path, deadline="0.001s", max_steps=2))
        record = json.loads((path / "run.json").read_text())
        assert record["num_threads"] == record["decided"]["num_threads"]["value"] == 1
        choice = "training.compute_choice_measured(chosen=training.cpu_threads(count=1, most=2), "
        assert any(line.startswith(choice) for line in lines)
        assert torch.get_num_threads() == 2
        again, _ = deploy(small_config(tmp_path, max_steps=2))
        assert (again, torch.get_num_threads()) == (path, 2)
    versions = CheckpointManager(path / "checkpoints").checkpoints()
    assert {load_values(version).values["identity"]["num_threads"] for version in versions} == {1}


@pytest.mark.parametrize("pays", [True, False])
def test_whether_compiling_pays_is_recorded(
    config: DeploymentConfig, trainer: EnhancedTrainer, tmp_path: Path, pays: bool
) -> None:
    run = plan_run(tmp_path / "runs", "small")
    run.path.mkdir(parents=True)
    record_run(run, config, trainer)
    benchmark = CompileBenchmark(lambda: trainer.prepare().loop)
    observer = CompilingObserver(run, benchmark)
    state = trainer.state
    observer.train_start(state)  # nothing was measured: it was decided before
    record = read_record(run.run_file)
    assert record["decided"] == {}
    write_record(run.run_file, {**record, "decided": {"num_threads": {"value": 2}}})
    benchmark.decision = CompileDecision(1.0, 0.5 if pays else 0.95, 3.0, 100)
    observer.train_start(state)
    value = "default" if pays else "none"
    assert read_record(run.run_file) == {
        **record,
        "decided": {
            "num_threads": {"value": 2},
            "training.compile_mode": {"value": value, "origin": str(benchmark.decision)},
        },
    }
    run.run_file.write_text("torn")
    observer.train_start(state)
    assert run.run_file.read_text() == "torn"


@pytest.mark.parametrize("setting", [{"gradient_checkpointing": True}, {"compile_mode": "default"}])
def test_the_last_mlp_is_recorded_as_it_is_computed(
    config: DeploymentConfig, setting: dict[str, object]
) -> None:
    training = config.training.copy_with(**setting)
    made = EnhancedTrainer(config.model, training, config.data, device="cpu")
    assert last_mlp_form(made) == "all tokens"


def test_a_model_that_will_be_spread_computes_all_of_its_last_mlp(trainer: EnhancedTrainer) -> None:
    trainer.placement.sharding = Sharding.SHARD
    assert last_mlp_form(trainer) == "all tokens"


@pytest.mark.parametrize(
    ("after", "error", "status"),
    [(AFTER, None, "finished"), (None, None, "stopped"), (None, OSError("full"), "failed")],
)
def test_the_status_is_what_happened(
    after: HeldOut | None,
    error: Exception | None,
    status: str,
    trainer: EnhancedTrainer,
    tmp_path: Path,
) -> None:
    run = plan_run(tmp_path / "runs", "small")
    summary = summarise(run, trainer, 1.5, BEFORE, after, error)
    assert summary["example"] == {
        **{"prompt": "Reverse abc", "expected": "cba", "before": ""},
        **({} if after is None else {"after": "cba\nok"}),
    }
    assert summary["before"] == {"eval_loss": 4.0, "exact_match": {"all": 0.0}}
    assert after is None or summary["after"] == {"eval_loss": 1.0, "exact_match": {"all": 0.75}}
    assert summary["num_questions"] == (0 if after is None else 8)
    assert summary["validation_prompts"] == trainer.training_config.validation_prompts
    assert summary["num_held_out"] == trainer.initialize_data().report.num_evaluation
    assert not summary.keys() & {"system_prompt", "has_context", "loss_function"}
    assert (summary["status"], summary["seconds"]) == (status, 1.5)
    assert (summary["epochs"], summary["num_processes"]) == (0, 1)
    assert (summary["after"] is None) == (after is None)
    assert summary["error"] == (None if error is None else "OSError: full")


def test_what_is_particular_about_data_loss_and_memory_is_in_the_summary(
    trainer: EnhancedTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plan_run(tmp_path / "runs", "small")
    report: Any = trainer.initialize_data().report
    monkeypatch.setattr(report, "system_prompt", "Be brief.")
    monkeypatch.setattr(report, "has_context", True)
    with LOSSES.registered("focal", lambda logits, targets: logits.sum(-1)):
        trainer.training_config.loss = "focal"
    whole = run_finalizer.summary_of
    monkeypatch.setattr(
        run_finalizer,
        "summary_of",
        lambda *given, **named: {**whole(*given, **named), "peak_memory_bytes": 100.0},
    )
    peaks = []
    for highest in (1, 300, None):
        facts = {"highest_bytes": highest}
        monkeypatch.setattr(run_finalizer, "memory_facts", lambda _, facts=facts: facts)
        summary = summarise(run, trainer, 1.5, BEFORE)
        assert summary["memory"] == facts
        peaks.append(summary["peak_memory_bytes"])
    assert peaks == [100.0, 300.0, 100.0]
    assert (summary["system_prompt"], summary["has_context"]) == ("Be brief.", True)
    assert summary["loss_function"] == "focal"


def test_a_loss_that_is_no_number_is_named(trainer: EnhancedTrainer, tmp_path: Path) -> None:
    run = plan_run(tmp_path / "runs", "small")
    after = HeldOut({"eval_loss": math.nan})
    summary = summarise(run, trainer, 1.5, HeldOut({"eval_loss": 4.0}), after)
    assert summary["after"]["eval_loss"] == "NaN"
    assert summary["example"] is None
    json.dumps(summary, allow_nan=False)


def test_the_model_in_one_line(trainer: EnhancedTrainer, saved_llama: Path) -> None:
    line = describe_model(trainer)
    assert line.startswith(f"deployment.model_line(model={saved_llama.name}, millions=0.112448, ")
    assert f" precision={trainer.precision.name}, device=cpu, processes=)" in line
    assert " trained=deployment.trains_all(millions=0.112448)," in line
    first, *others = trainer.initialize_model().parameters()
    for parameter in others:
        parameter.requires_grad_(False)
    assert f" trained=deployment.trains_part(millions={first.numel() / 1e6})," in describe_model(
        trainer
    )
    trainer.model_config = trainer.model_config.copy_with(lora_config=LoraConfig())
    assert " trained=deployment.trains_lora(millions=" in describe_model(trainer)
    trainer.model_config.quantization = "4bit"
    assert " trained=deployment.trains_qlora(millions=" in describe_model(trainer)
    trainer.placement = Placement(SimpleNamespace(size=3, is_first=True))  # type: ignore[arg-type]
    assert "processes=, 3 processes)" in describe_model(trainer)


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ({"qlora_enabled": True}, "stackwise.trains_stacks_low_rank()"),
        ({"mode": "blockwise"}, "stackwise.trains_stacks_in_turn()"),
        (
            {"mode": "blockwise", "qlora_enabled": True},
            "stackwise.trains_stacks_in_turn_low_rank()",
        ),
        ({"strategy": "end_to_end"}, "deployment.trains_all(millions="),
    ],
)
def test_the_model_line_names_what_block_wise_training_trains(
    config: DeploymentConfig, setting: dict[str, object], what: str
) -> None:
    training = config.training.copy_with(**setting)
    made = EnhancedTrainer(config.model, training, config.data, device="cpu")
    assert f" trained={what}" in describe_model(made)


def test_weights_of_four_bits_are_all_counted(
    trainer: EnhancedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = next(trainer.initialize_model().parameters())
    shape = SimpleNamespace(shape=torch.Size((3000, 1000)))
    monkeypatch.setattr(packed, "quant_state", shape, raising=False)
    assert " millions=3." in describe_model(trainer)


def test_more_gpus_than_the_run_uses_are_reported(
    trainer: EnhancedTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert unused_gpus(trainer) == []  # it was told to use the CPU
    trainer.device = torch.device("cuda")
    (line,) = unused_gpus(trainer)
    assert line == "deployment.unused_gpus(count=2, used=1)"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert unused_gpus(trainer) == []
