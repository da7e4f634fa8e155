"""Trainings that teach nothing are refused or stopped, and healthy ones are left alone.

    make prove-learning

trains each case below for NUM_STEPS steps by the engine that it names, and prints what became of
it: `refused` before the first step, `stopped` after some with all of them saved, or `finished`. A
case that teaches nothing and finishes is silent. Exit code 1 if one is not as expected.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import NothingLearnedError, TemperError
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.checkpoints.checkpoint_manager import load_values
from infrastructure.training.hf_bridge import TemperCallback
from tests.field import same_bits, useless_parts
from tests.training.hf_bridge.tiny_trainer import trainer_of
from tests.training.methods.method_runs import rows_of, write_rows

NUM_STEPS = 45
PARTS = "tests.field.useless_parts"
REFUSED, STOPPED, FINISHED = "refused", "stopped", "finished"
OF_LEARNING = ("tied_steps", "gradient_norm")  # alerts; others are of the machine


@dataclass(frozen=True)
class Ending:
    """What became of a training.

    Attributes:
        step: of its newest version; 0: nothing was trained.
        alarms: what was noted, and alerts, by their kind.
    """

    how: str
    step: int
    message: str
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        teaches: weights change in it to the end.
        train: trains in an empty folder; raises what `temper train` does.
        alarms: that are right.
    """

    engine: str
    name: str
    teaches: bool
    train: Callable[[Path], object]
    alarms: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.engine}: {self.name}"

    def ending(self, folder: Path) -> Ending:
        """Train, and look at what is left."""
        useless_parts.calls = 0
        how, message = FINISHED, ""
        try:
            self.train(folder)
        except NothingLearnedError as error:
            how, message = STOPPED, str(error)
        except (ValueError, TemperError) as error:
            how, message = REFUSED, str(error)
        return Ending(how, _newest_step(folder), message, _alarms(folder))

    def is_as_expected(self, ending: Ending) -> bool:
        """Whether it ended well: nothing is refused that has trained already."""
        if self.teaches:
            return ending.how == FINISHED and ending.alarms == self.alarms
        is_stopped = ending.how == STOPPED and ending.step >= 20
        return is_stopped or (ending.how == REFUSED and ending.step == 0)


def _newest_step(folder: Path) -> int:
    versions = folder.glob("runs/*/checkpoints/versions/*.json")
    return max((load_values(path).values["step"] for path in versions), default=0)


def _alarms(folder: Path) -> tuple[str, ...]:
    found = set()
    for path in folder.glob("runs/*/summary.json"):
        found |= {entry["kind"] for entry in json.loads(path.read_text()).get("recoveries", [])}
    for path in folder.glob("runs/*/logs/system/alerts.jsonl"):
        alerts = map(json.loads, path.read_text().splitlines())
        found |= {alert["rule"] for alert in alerts if alert["rule"] in OF_LEARNING}
    return tuple(sorted(found))


def by_command(settings: dict[str, Any], folder: Path) -> None:
    """As `temper train` does."""
    given = {**settings, "output_dir": str(folder / "runs"), "device": "cpu"}
    given["cache"] = {"directory": str(folder / "cache")}
    given["training"] = {"metrics_sinks": ["jsonl"], **settings["training"]}
    TrainingDeployment(DeploymentConfig(**given), say=lambda line: None).run()


def of_settings(engine: str, name: str, teaches: bool, settings: Any, **more: Any) -> Case:
    """A case of `temper train`."""
    return Case(engine, name, teaches, partial(by_command, settings), **more)


class Inputs:
    """Models and data, and the settings of trainings on them.

    Args:
        folder: that they are written into.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.healthy = same_bits.configurations(folder)
        self.base = str(folder / "llama")

    def own(self, **training: Any) -> dict[str, Any]:
        """Settings for our own loop."""
        return self._changed(self.healthy["full"], training)

    def of(self, method: str, rows: Iterable[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
        """Settings for a method of TRL, on other rows if there are some."""
        settings = self._changed(self.healthy[method], more.pop("training", {}))
        if rows := list(rows):
            number = len(list(self.folder.glob("rows-*")))
            path = write_rows(self.folder / f"rows-{number}.jsonl", rows)
            settings["data"]["path"] = str(path)
        settings["data"] |= more.pop("data", {})
        settings["model"] |= more.pop("model", {})
        return settings

    def rewarded(self, method: str, *rewards: str, **more: Any) -> dict[str, Any]:
        """Settings for GRPO or RLOO with rewards of ours."""
        training = {"rewards": [f"{PARTS}:{name}" for name in rewards], "beta": 0.0}
        training |= more.pop("training", {})
        return self.of(method, training=training, **more)

    @staticmethod
    def _changed(settings: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = json.loads(json.dumps(settings))
        steps = {"max_steps": NUM_STEPS, "warmup_steps": 2}
        changed["training"] |= steps | training
        return changed


def useless(inputs: Inputs) -> list[Case]:
    """Trainings that change no weight, or none after a while."""
    own, of, rewarded = inputs.own, inputs.of, inputs.rewarded
    equal = [{"prompt": f"{n} +", "chosen": "a b c d", "rejected": "a b c e"} for n in range(30)]
    prompts = [{"prompt": f"{n} + 1 ="} for n in range(20)]
    no_weights = {"method_settings": {"reward_weights": [0.0]}}
    cases = [
        of_settings("own loop", "loss of weight 0", False, own(loss=f"{PARTS}:no_loss")),
        of_settings(
            *("own loop", "loss of weight 0, unchecked", False),
            {**own(loss=f"{PARTS}:no_loss"), "enable_testing": False},
        ),
        of_settings(
            *("own loop", "a margin that is reached", False),
            own(loss=f"{PARTS}:beyond_margin", learning_rate=1e-2),
        ),
        of_settings(
            *("own loop", "masked gradients", False),
            own(enabled_extensions=[f"{PARTS}:ZeroesGradients"]),
        ),
        of_settings("dpo", "beta 0", False, of("dpo", training={"beta": 0.0})),
        of_settings("kto", "beta 0", False, of("kto", training={"beta": 0.0})),
        of_settings("dpo", "equal after the cut", False, of("dpo", equal, data={"max_length": 6})),
        of_settings(
            *("dpo", "loss of weight 0", False),
            of("dpo", training={"method_settings": {"loss_weights": [0.0]}}),
        ),
    ]
    for method in ("grpo", "rloo"):
        cases += [
            of_settings(method, "None for all answers", False, rewarded(method, "nothing")),
            of_settings(
                *(method, "None, and rows without answers", False),
                rewarded(method, "nothing", rows=prompts),
            ),
            of_settings(method, "None after a while", False, rewarded(method, "nothing_later")),
            of_settings(method, "NaN after a while", False, rewarded(method, "not_a_number_later")),
            of_settings(method, "too few numbers", False, rewarded(method, "too_few")),
            of_settings(
                *(method, "two functions, None and None", False),
                rewarded(method, "nothing", "nothing_later"),
            ),
            of_settings(
                method, "rewards of weight 0", False, rewarded(method, "good", training=no_weights)
            ),
        ]
    return [*cases, *(Case("callback", name, False, train) for name, train in _of_callback(inputs))]


def _of_callback(inputs: Inputs) -> list[tuple[str, Callable[[Path], None]]]:
    return [
        ("loss of weight 0", partial(train_with_callback, loss=lambda output: 0.0 * output)),
        ("None for all answers", partial(_grpo_with_callback, inputs, useless_parts.nothing)),
        ("NaN after a while", partial(_grpo_with_callback, inputs, useless_parts.nothing_later)),
        ("DPO with beta 0", partial(_dpo_with_callback, inputs, 0.0)),
    ]


def _callback(folder: Path) -> TemperCallback:
    training = {"checkpoint_seconds": None, "metrics_sinks": ["jsonl"]}
    config = DeploymentConfig(output_dir=str(folder / "runs"), training=training)
    return TemperCallback("tiny", config, say=lambda line: None)


def _train(trainer: Any, folder: Path) -> None:
    from transformers.trainer_callback import PrinterCallback

    callback = _callback(folder)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())


def train_with_callback(
    folder: Path, loss: Callable[[Any], Any] = lambda output: output, **options: Any
) -> None:
    """A Trainer of transformers with a loss of its own."""
    trainer = trainer_of(folder, max_steps=NUM_STEPS, save_steps=100, **options)
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, **named: Any) -> Any:
        return loss(compute(model, inputs, **{**named, "return_outputs": False}))

    trainer.compute_loss = compute_loss
    _train(trainer, folder)


def _arguments(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {
        "max_steps": NUM_STEPS,
        "per_device_train_batch_size": 4,
        "logging_steps": 7,
    }
    values |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False}
    return {**values, "output_dir": str(folder / "of-the-trainer"), "save_strategy": "no"}


def _grpo_with_callback(inputs: Inputs, reward: Any, folder: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    own: dict[str, Any] = {"num_generations": 4, "max_completion_length": 8}
    _train(
        GRPOTrainer(
            inputs.base,
            reward_funcs=[reward],
            args=GRPOConfig(**_arguments(folder), **own),
            train_dataset=Dataset.from_list([{"prompt": f"{n} + 1 ="} for n in range(20)]),
        ),
        folder,
    )


def _dpo_with_callback(inputs: Inputs, beta: float, folder: Path) -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    _train(
        DPOTrainer(
            inputs.base,
            args=DPOConfig(**_arguments(folder), beta=beta),
            train_dataset=Dataset.from_list(rows_of("pairs")),
        ),
        folder,
    )


def healthy(inputs: Inputs) -> list[Case]:
    """Trainings that nothing is wrong with, those among them that look as if there were."""
    own, of, rewarded = inputs.own, inputs.of, inputs.rewarded
    plain = [name for name in inputs.healthy if name not in ("grpo", "rloo", "4-bit lora")]
    cases = [
        of_settings("same bits", name, True, inputs._changed(inputs.healthy[name], {}))
        for name in plain
    ]
    lora, past_20 = {"lora_config": {"r": 4}}, {"max_steps": 25}
    odd = [{"prompt": f"{n} +", "answer": f"{n}", "task": ("odd", "even")[n % 2]} for n in range(9)]
    tied = ("tied_steps",)
    long = {"rejected": " ".join(["word"] * 60)}
    cases += [
        of_settings("own loop", "one row, learned by heart", True, own(learning_rate=1e-2)),
        of_settings("own loop", "long warm-up", True, own(warmup_steps=22)),
        of_settings(
            *("own loop", "gradients masked in 19 of 20 steps", True),
            {
                **own(enabled_extensions=[f"{PARTS}:ZeroesSomeGradients"]),
                "enable_testing": False,
            },
        ),
        of_settings("own loop", "a record in each step", True, own(log_frequency=1)),
        of_settings(
            *("own loop", "batches of one row", True),
            own(log_frequency=1, batch_size=1, learning_rate=3e-3),
        ),
        of_settings(
            "dpo",
            "LoRA, whose A has no gradient at first",
            True,
            of("dpo", model=lora, training=past_20),
        ),
        of_settings(
            *("orpo", "one long answer", True),
            of("orpo", [*rows_of("pairs"), rows_of("pairs")[0] | long], data={"max_length": 32}),
        ),
    ]
    for method in ("grpo", "rloo"):
        cases += [
            of_settings(method, "rewards that differ", True, rewarded(method, "good")),
            of_settings(method, "LoRA", True, rewarded(method, "good", model=lora)),
            of_settings(method, "ties", True, rewarded(method, "tied"), alarms=tied),
            of_settings(
                *(method, "None for every second row", True),
                rewarded(method, "of_other_rows", rows=odd),
            ),
            of_settings(
                *(method, "None of one function of two", True),
                rewarded(method, "good", "nothing"),
            ),
        ]
    return [
        *cases,
        Case("callback", "Trainer", True, train_with_callback),
        Case("callback", "no clipping", True, partial(train_with_callback, max_grad_norm=0.0)),
        Case("callback", "warm-up", True, partial(train_with_callback, warmup_steps=25)),
        Case("callback", "DPO", True, partial(_dpo_with_callback, inputs, 0.1)),
        Case("callback", "GRPO", True, partial(_grpo_with_callback, inputs, useless_parts.good)),
        Case(
            *("callback", "GRPO, ties", True),
            partial(_grpo_with_callback, inputs, useless_parts.tied),
            alarms=tied,
        ),
    ]


def main() -> int:
    """Train all of them, print the table, and return the exit code."""
    num_wrong = 0
    with tempfile.TemporaryDirectory() as name:
        inputs = Inputs(Path(name))
        for case in [*useless(inputs), *healthy(inputs)]:
            folder = Path(name) / "trained"
            folder.mkdir()
            ending = case.ending(folder)
            shutil.rmtree(folder)
            is_right = case.is_as_expected(ending)
            num_wrong += not is_right
            mark = "" if is_right else "WRONG "
            kind = "teaches" if case.teaches else "useless"
            alarms = ", ".join(ending.alarms)
            print(f"{kind} {case!s:52} {mark}{ending.how:8} {ending.step:3} {alarms}", flush=True)
            if not is_right or not case.teaches:
                print(f"        {ending.message[:300]}", flush=True)
    print(f"{num_wrong} not as expected")
    return int(num_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
