"""What teaches nothing is noticed, and numbers mean what they are called (S1 to S3, S7 to S9, S11,
F6, F16, P7, W1, W2)."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import TrainingDivergedError
from infrastructure.features.metric_exporters import tracker_sinks
from infrastructure.training.core.state import TrainingState
from infrastructure.training.methods.trl_training import TrlTraining
from tests.field import teaching, useless_parts
from tests.field.teaching import PARTS, Case, Inputs, by_command
from tests.field.useless_parts import NotesRates
from tests.slow import slow_but
from tests.training.methods.method_runs import import_trl, rows_of


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    import_trl()
    return Inputs(tmp_path_factory.mktemp("learning"))


def run_in(folder: Path) -> Path:
    [run] = folder.glob("runs/*/")
    return run


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (run_in(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def recoveries(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    found = json.loads((run_in(folder) / "summary.json").read_text())["recoveries"]
    return found


QUICK = (
    "dpo: beta 0",
    "dpo: equal after the cut",
    "grpo: None for all answers",
    "grpo: None after a while",
    "callback: loss of weight 0",
)
ALL_USELESS = [
    str(case)
    for case in teaching.useless(
        SimpleNamespace(  # type: ignore[arg-type]
            own=dict, of=lambda *_, **__: {}, rewarded=lambda *_, **__: {}
        )
    )
]


def case_of(cases: list[Case], name: str) -> Case:
    [case] = [case for case in cases if str(case) == name]
    return case


@pytest.mark.parametrize("name", slow_but(QUICK, ALL_USELESS))
def test_s1_a_training_that_teaches_nothing_is_refused_or_stopped(
    inputs: Inputs, tmp_path: Path, name: str
) -> None:
    case = case_of(teaching.useless(inputs), name)
    ending = case.ending(tmp_path)
    assert case.is_as_expected(ending), ending


HEALTHY = (
    "own loop: gradients masked in 19 of 20 steps",
    "dpo: LoRA, whose A has no gradient at first",
    "grpo: ties",
    "callback: warm-up",
)


@pytest.mark.parametrize("name", slow_but([one for one in HEALTHY if "ties" not in one], HEALTHY))
def test_s1_a_healthy_training_is_left_alone(inputs: Inputs, tmp_path: Path, name: str) -> None:
    """All others are in `make prove-learning`."""
    case = case_of(teaching.healthy(inputs), name)
    ending = case.ending(tmp_path)
    assert case.is_as_expected(ending), ending


def test_s1_a_stopped_training_has_failed_and_is_not_started_again(
    inputs: Inputs, tmp_path: Path
) -> None:
    """The exit code is one that no supervisor restarts; the same command stops once more."""
    settings = inputs.own(loss=f"{PARTS}:no_loss")
    file = tmp_path / "temper.yaml"
    file.write_text(json.dumps({**settings, "output_dir": str(tmp_path / "runs")}))
    assert main(["train", "--config", str(file)]) == 2
    summary = json.loads((run_in(tmp_path) / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 20)
    assert "training.all_gradients_zero" in summary["error"]
    assert not (run_in(tmp_path) / "final").exists()
    unit = Path(__file__).parents[2] / "examples" / "machines" / "temper.service"
    assert "RestartPreventExitStatus=2\n" in unit.read_text()
    assert main(["train", "--config", str(file)]) == 2
    assert json.loads((run_in(tmp_path) / "summary.json").read_text())["steps"] == 21


def test_s2_pairs_that_differ_beyond_the_cut_are_set_aside(inputs: Inputs, tmp_path: Path) -> None:
    equal = {"prompt": "9 +", "chosen": "a b c d e f g h", "rejected": "a b c d e f g i"}
    settings = inputs.of("dpo", [*rows_of("pairs"), equal], data={"max_length": 12})
    settings["data"]["max_bad_rows_percent"] = 50
    data = TrlTraining(DeploymentConfig(**settings, output_dir=str(tmp_path)), tmp_path).data
    assert data.quarantine.total == 1
    assert len(data.train) + len(data.held_out) == len(rows_of("pairs"))


def test_s3_each_answer_of_orpo_is_cut_by_its_own_length(inputs: Inputs, tmp_path: Path) -> None:
    """One long answer, and a short one beside it, which stays whole."""
    long = {"prompt": "7 + 1 =", "chosen": "8", "rejected": " ".join(["word"] * 60)}
    settings = inputs.of("orpo", [*rows_of("pairs"), long], data={"max_length": 32})
    settings["data"] |= {"validation_split": 0.0}
    config = DeploymentConfig(**settings, output_dir=str(tmp_path), device="cpu")
    training = TrlTraining(config, tmp_path)
    trainer = training.make_trainer(is_new=False)
    assert type(trainer).__name__ == "ORPOTrainer"
    row = trainer.train_dataset[len(rows_of("pairs"))]
    chosen, rejected = row["chosen_input_ids"], row["rejected_input_ids"]
    text = str(training.tokenizer.decode(chosen, skip_special_tokens=True))
    assert text.split() == ["7", "+", "1", "=", "8"]
    assert chosen[-1] == training.tokenizer.eos_token_id
    assert len(rejected) == 32
    learned = [label for label in row["rejected_labels"] if label != -100]
    assert learned == rejected[-len(learned) :]
    assert len(learned) > 20
    assert trainer.max_length == 32


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_s7_the_learning_rate_of_a_record_is_the_one_that_was_used(
    inputs: Inputs, tmp_path: Path, method: str
) -> None:
    more: dict[str, Any] = {"max_steps": 7, "warmup_steps": 3, "log_frequency": 1}
    more["enabled_extensions"] = [f"{PARTS}:NotesRates"]
    settings = inputs.own(**more) if method == "sft" else inputs.of("dpo", training=more)
    NotesRates.used.clear()
    by_command({**settings, "enable_testing": False}, tmp_path)
    logged = [record["learning_rate"] for record in records(tmp_path) if "loss" in record]
    used = NotesRates.used[-7:]
    assert logged == pytest.approx(used, rel=1e-6)
    assert len({*used}) >= 5
    assert used[-1] > 0


def exploding(inputs: Inputs, **recovery: Any) -> dict[str, Any]:
    given = {"learning_rate": 10.0, "max_grad_norm": None, "warmup_steps": 0, "log_frequency": 1}
    settings = inputs.own(**given, max_steps=12, recovery=recovery)
    return {**settings, "enable_testing": False}


def test_s8_an_explosion_in_the_first_steps_is_noticed(inputs: Inputs, tmp_path: Path) -> None:
    by_command(exploding(inputs), tmp_path)
    assert {(entry["kind"], entry["step"] < 12) for entry in recoveries(tmp_path)} == {
        ("loss_spike", True)
    }


def test_s8_roll_back_works_in_the_first_steps(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingDivergedError,
        match=r"max_rollbacks_reached\(limit=3\).*step 3: training\.rolled_back_to_skip",
    ):
        by_command(exploding(inputs, loss_spike="roll_back"), tmp_path)
    assert not (run_in(tmp_path) / "final").exists()


def test_s9_losses_that_cross_zero_are_no_spikes(inputs: Inputs, tmp_path: Path) -> None:
    """A loss from which the entropy is taken: small, of both signs, and now and then larger."""
    settings = inputs.own(loss=f"{PARTS}:around_zero", log_frequency=1)
    by_command({**settings, "enable_testing": False}, tmp_path)
    losses = [record["loss"] for record in records(tmp_path) if "loss" in record]
    assert min(losses) < 0 < sorted(losses)[len(losses) // 2]
    assert max(losses) > 5 * sorted(losses)[len(losses) // 2]
    assert recoveries(tmp_path) == []


def test_s11_json_labels_are_the_variables_of_both_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.json"
    path.write_text('{"linear": {"0": 1, "1": 1}, "quadratic": [[0, 1, -3]]}')
    assert main(["quantum", "solve", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["num_variables"], facts["energy"]) == (2, -1.0)


def test_f6_every_column_reaches_the_reward_function(inputs: Inputs, tmp_path: Path) -> None:
    """Lists, objects, values of several kinds, and none."""
    rows = [
        {
            **{"prompt": f"{n} +", "answer": f"{n}", "tags": ["a"] * (n % 3)},
            **{"about": {"odd": n} if n % 2 else {"even": [n]}, "level": None if n % 3 else n},
            **({"seldom": 0.5} if n == 4 else {}),
        }
        for n in range(12)
    ]
    settings = inputs.rewarded("grpo", "notes_columns", rows=rows, training={"max_steps": 1})
    by_command(settings, tmp_path)
    by_answer = {row["answer"]: row for row in rows}
    given = useless_parts.given
    assert {"answer", "tags", "about", "level", "seldom"} <= given.keys()
    for index, answer in enumerate(given["answer"]):
        for name in ("tags", "about", "level", "seldom"):
            assert given[name][index] == by_answer[answer].get(name), name


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_f16_the_report_has_its_numbers_whatever_else_is_written_to(
    inputs: Inputs, tmp_path: Path, method: str
) -> None:
    more = {"max_steps": 3, "metrics_sinks": ["tensorboard"]}
    settings = inputs.own(**more) if method == "sft" else inputs.of("dpo", training=more)
    by_command(settings, tmp_path)
    assert [r["step"] for r in records(tmp_path) if "loss" in r][-1] == 3
    assert any((run_in(tmp_path) / "tensorboard").glob("events.*"))
    assert "No step was logged" not in (run_in(tmp_path) / "report.html").read_text()


def test_p7_trackio_is_given_no_step_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[int] = []
    package = SimpleNamespace(
        init=lambda **_: SimpleNamespace(_next_step=4),
        log=lambda numbers, step: logged.append(step),
        finish=lambda: None,
    )
    monkeypatch.setattr(
        "infrastructure.features.metric_exporters.tracker_sinks.require", lambda *_: package
    )
    sink = tracker_sinks.TrackioSink(tmp_path)
    sink.truncate_after(2)
    for step in (3, 4, 5):
        sink.write({"step": step, "loss": 1.0})
    assert logged == [4, 5]


def test_w1_a_sweep_compares_trials_after_the_same_share(tmp_path: Path) -> None:
    """The last one is evaluated first after a thirtieth of its training, and is the best."""
    optuna = pytest.importorskip("optuna")
    from infrastructure.features.sweep.study import Goal, open_study
    from infrastructure.features.sweep.trial import TrialObserver

    epochs = (1, 2, 3, 4, 5, 30)
    study = open_study(tmp_path, Goal())
    for number, total in enumerate(epochs):
        study.ask({"training.num_epochs": optuna.distributions.IntDistribution(1, 30)})
        observer = TrialObserver(tmp_path, number, Goal())
        state = TrainingState(torch.nn.Linear(1, 1), total_steps=10 * total)
        for epoch in range(1, total + 1):
            state.step, state.evaluation = 10 * epoch, {"eval_loss": 6.0 * 0.75**epoch}
            observer.eval_end(state)
            assert not state.is_interrupted, (total, epoch)
        open_study(tmp_path, Goal()).tell(number, state.evaluation["eval_loss"])
    assert open_study(tmp_path, Goal()).best_trial.number == 5


def test_w2_layers_that_a_training_never_reaches_are_refused(
    inputs: Inputs, tmp_path: Path
) -> None:
    """The setting of the report is gone; layer by layer, too few steps would do the same."""
    with pytest.raises(ValueError, match=r"config\.unknown_key.*unfreeze_interval"):
        DeploymentConfig(training={"unfreeze_interval": 1})
    few = inputs.own(mode="layerwise", max_steps=3)
    with pytest.raises(ValueError, match=r"stackwise\.last_phase_not_reached\(total_steps=3"):
        by_command(few, tmp_path)
    assert not [*tmp_path.glob("runs/*")]
