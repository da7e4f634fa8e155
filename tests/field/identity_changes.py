"""One thing at a time is changed between the end of a run and its resumption: is it noticed?

Each row of a table is one change with what must come of it: refused by the name of a part, recorded
by a name, or the very weights of a run that was not disturbed. A change that goes unnoticed and
leads to other weights is silent, which must never happen.

    python -m tests.field.identity_changes      # prints the table; exit code 1 where a row fails
"""

import contextlib
import copy
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run import compatibility
from infrastructure.run.compatibility import Difference, RunChangedError, Verdict
from infrastructure.run.directory import RunDirectory
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.hf_bridge import TemperCallback, bridged_training
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from infrastructure.training.resume import fingerprint, resumption
from tests.conftest import save_tiny_llama
from tests.training.methods import method_runs
from tests.training.methods.method_runs import trained_weights

STOP_AT = 2
STEPS = 4


class Outcome(StrEnum):
    REFUSED = "refused"
    RECORDED = "recorded"
    UNDISTURBED = "undisturbed"
    SILENT = "SILENT"
    BROKEN = "BROKEN"


@dataclass
class Result:
    """What came of a change: the names of what was refused or recorded, and any other error."""

    outcome: Outcome
    names: tuple[str, ...] = ()
    error: str = ""
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """One change of a route, and what must come of it.

    Attributes:
        what: in words; begins with the route's name.
        apply: changes a `Setup`.
        name: of the part, argument or fact that is refused or recorded.
        or_settled: the part may be noticed earlier, by a plain error that names it.
    """

    route: str
    what: str
    apply: Callable[[Any], object]
    expected: Outcome
    name: str = ""

    def __str__(self) -> str:
        return f"{self.route}: {self.what}"


class StoppedError(RuntimeError):
    """The machine is gone."""


@dataclass
class Setup:
    """Everything that a training is made from, with its files in `folder`."""

    folder: Path
    values: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    after_init: list[Callable[[Any], object]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    patches: list[Any] = field(default_factory=list)
    is_table: bool = False

    @property
    def base(self) -> Path:
        return self.folder / "base"


class Route:
    """A way to train: begun and stopped once, resumed for each change."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder / name
        self.work, self.pristine = self.folder / "work", self.folder / "pristine"
        self.work.mkdir(parents=True)
        self.setup = Setup(self.work)
        self.write_files(self.setup)
        with dying_at(STOP_AT), contextlib.suppress(StoppedError):
            self.train(self._fresh(), [])
        shutil.copytree(self.work, self.pristine)

    def write_files(self, setup: Setup) -> None:
        raise NotImplementedError

    def train(self, setup: Setup, lines: list[str]) -> torch.Tensor:
        """Begin or resume, to the end; the weights."""
        raise NotImplementedError

    def _fresh(self) -> Setup:
        setup = copy.copy(self.setup)
        for name in ("values", "options", "parts", "after_init", "hooks", "patches"):
            setattr(setup, name, copy.deepcopy(getattr(self.setup, name)))
        return setup

    def outcome(self, apply: Callable[[Setup], object]) -> Result:
        """What comes of a change."""
        shutil.rmtree(self.work)
        shutil.copytree(self.pristine, self.work)
        setup, lines, agreed = self._fresh(), list[str](), list[Difference]()
        apply(setup)
        with contextlib.ExitStack() as stack:
            stack.enter_context(seeing(agreed))
            for patch in setup.patches:
                stack.enter_context(patch)
            try:
                weights = self.train(setup, lines)
            except RunChangedError as error:
                names = tuple(difference.name for difference in error.differences)
                return Result(Outcome.REFUSED, names, str(error), lines)
            except Exception as error:  # whatever a library says
                return Result(Outcome.BROKEN, (), f"{type(error).__name__}: {error}", lines)
        recorded = [d.name for d in agreed if d.verdict is Verdict.ROUNDS_OTHERWISE]
        if recorded:
            return Result(Outcome.RECORDED, tuple(recorded), "", lines)
        if not hasattr(self, "weights"):
            self.weights = self.calm_weights()
        same = weights.shape == self.weights.shape and torch.equal(weights, self.weights)
        return Result(Outcome.UNDISTURBED if same else Outcome.SILENT, (), "", lines)

    def calm_weights(self) -> torch.Tensor:
        """Of a run that nothing has stopped, in the same folder."""
        kept = self.folder / "kept"
        self.work.rename(kept)
        shutil.copytree(self.pristine, self.work)
        shutil.rmtree(self.work / "runs")
        weights = self.train(self._fresh(), [])
        shutil.rmtree(self.work)
        kept.rename(self.work)
        return weights


@contextlib.contextmanager
def seeing(agreed: list[Difference]) -> Iterator[None]:
    """Inside, what a run that resumes has agreed to is put into `agreed`."""

    def check(*given: Any, **named: Any) -> list[Difference]:
        found = compatibility.check_compatible(*given, **named)
        agreed.extend(found)
        return found

    with contextlib.ExitStack() as stack:
        for module in (bridged_training, resumption):
            stack.enter_context(mock.patch.object(module, "check_compatible", check))
        yield


@contextlib.contextmanager
def dying_at(step: int) -> Iterator[None]:
    """Inside, a training ends when the gradients of the step after `step` are there."""
    final = TrainerEvents.gradients_are_final

    def die(events: TrainerEvents) -> None:
        if events.state.step == step:
            raise StoppedError
        final(events)

    class Die(Observer):
        def after_backward(self, state: TrainingState) -> None:
            if state.step == step:
                raise StoppedError

    observers = TrainingDeployment._observers

    def more(self: Any, run: Any, copies: Any) -> list[Any]:
        return [*observers(self, run, copies), Die()]

    with (
        mock.patch.object(TrainerEvents, "gradients_are_final", die),
        mock.patch.object(TrainingDeployment, "_observers", more),
    ):
        yield


def forget_modules(folder: Path) -> None:
    """Import modules of a folder anew: their text may have changed within a second."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder):
            del sys.modules[name]
    importlib.invalidate_caches()


@contextlib.contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    forget_modules(folder)
    with (
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        mock.patch.object(sys, "dont_write_bytecode", True),
    ):
        try:
            yield
        finally:
            forget_modules(folder)


REWARD = "import scale\n\ndef reward(completions, **_):\n    return scale.of(completions)\n"
SCALE = "def of(completions):\n    return [float(len(str(c)) % 5) for c in completions]\n"
TURNS = """
import scale
import temper

class ByTurns(temper.StandardTrainingStrategy):
    pass
"""
LOSS = """
import torch

def smoothed(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
"""


class Deployed(Route):
    """As the command trains: own runs, and TRL's methods."""

    kind = "pairs"

    def write_files(self, setup: Setup) -> None:
        folder = setup.folder
        save_tiny_llama(setup.base)
        (setup.base / "generation_config.json").write_text('{"eos_token_id": 2}')
        method = self.name.partition("-")[0]
        self.kind = method_runs.KINDS.get(method, "prompts")
        rows = method_runs.rows_of(self.kind)
        method_runs.write_rows(folder / "rows.jsonl", rows[:20])
        method_runs.write_rows(folder / "held_out.jsonl", rows[20:])
        (folder / "mine").mkdir()
        for name, text in (("reward", REWARD), ("scale", SCALE), ("turns", TURNS), ("loss", LOSS)):
            (folder / "mine" / f"{name}.py").write_text(text)
        (folder / "schema.json").write_text('{"type": "object"}')
        training: dict[str, Any] = {
            **{"batch_size": 4, "gradient_accumulation": 1, "learning_rate": 1e-2, "seed": 3},
            **{"max_steps": STEPS, "warmup_steps": 1, "checkpoint_frequency": 1},
            **{"checkpoint_seconds": None, "metrics_sinks": ["jsonl"], "mixed_precision": False},
        }
        model: dict[str, Any] = {"name": str(setup.base)}
        if method != "own":
            training["method"] = method
        else:
            training |= {"validation_prompts": 0, "strategy": "turns:ByTurns"}
            training |= {"loss": "loss:smoothed"}
        if method in ("grpo", "rloo"):
            rewards = ["reward:reward", r"format=.*\d.*", f"json_schema={folder / 'schema.json'}"]
            training |= {"num_generations": 4, "rewards": rewards, "beta": 0.05}
        if self.kind == "prompts" and method != "own":
            training |= {"max_completion_length": 6}
        if method == "distillation":
            save_tiny_llama(folder / "teacher")
            training |= {"teacher": str(folder / "teacher")}
        if self.name.endswith("-lora"):
            model["lora_config"] = {"r": 4, "dropout": 0.1}
        setup.values = {
            "model": model,
            "data": {
                **{"path": str(folder / "rows.jsonl"), "eval_path": str(folder / "held_out.jsonl")},
                **{"max_length": 64, "accept_small_data": True},
            },
            "training": training,
            "output_dir": str(folder / "runs"),
            "cache": {"directory": str(folder / "cache")},
            **{"device": "cpu", "enable_monitoring": False, "enable_testing": False},
        }
        if method == "own":
            setup.values["data"]["num_workers"] = 0

    def train(self, setup: Setup, lines: list[str]) -> torch.Tensor:
        with importing_from(setup.folder / "mine"):
            config = DeploymentConfig(**setup.values)
            deployment = TrainingDeployment(config, say=lines.append)
            runs = [path.parent for path in (setup.folder / "runs").glob("*/run.json")]
            if runs:
                deployment.resume(RunDirectory(runs[0]))
            else:
                deployment.run()
        [run] = [path.parent for path in (setup.folder / "runs").glob("*/run.json")]
        return trained_weights(run / "final")


def edit_json(path: Callable[[Setup], Path], **values: Any) -> Callable[[Setup], object]:
    """Change keys of a JSON file."""

    def apply(setup: Setup) -> None:
        file = path(setup)
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return apply


def edit_text(name: str, old: str, new: str) -> Callable[[Setup], object]:
    def apply(setup: Setup) -> None:
        file = setup.folder / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return apply


def edit_row(index: int, name: str = "rows.jsonl") -> Callable[[Setup], object]:
    """Another answer in one row."""

    def apply(setup: Setup) -> None:
        file = setup.folder / name
        lines = file.read_text().splitlines()
        row = json.loads(lines[index])
        row["chosen" if "chosen" in row else "completion"] = "77"
        lines[index] = json.dumps(row)
        file.write_text("\n".join(lines) + "\n")

    return apply


def edit_weights(folder: str, how: Callable[[torch.Tensor], object]) -> Callable[[Setup], object]:
    """Other weights in a saved model."""

    def apply(setup: Setup) -> None:
        from safetensors.torch import load_file, save_file

        file = setup.folder / folder / "model.safetensors"
        tensors = load_file(file)
        how(next(t for n, t in tensors.items() if "mlp.up_proj" in n))
        save_file(tensors, file, metadata={"format": "pt"})

    return apply


def nudge(weight: torch.Tensor) -> None:
    weight.view(-1)[3] += 1e-3


def swap(weight: torch.Tensor) -> None:
    """The same numbers, two of them in each other's place."""
    weight[0, [0, 1]] = weight[0, [1, 0]]


def set_value(*keys: str, to: Any) -> Callable[[Setup], object]:
    def apply(setup: Setup) -> None:
        inside = setup.values
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
        inside[keys[-1]] = to

    return apply


def swap_rows(setup: Setup) -> None:
    file = setup.folder / "rows.jsonl"
    lines = file.read_text().splitlines()
    lines[3], lines[4] = lines[4], lines[3]
    file.write_text("\n".join(lines) + "\n")


def strip_before_token(setup: Setup) -> None:
    """A special token takes the white space before it: no row has any there."""
    file = setup.base / "tokenizer.json"
    values = json.loads(file.read_text())
    values["added_tokens"][-1]["lstrip"] = True
    file.write_text(json.dumps(values))


def versions_of(module: Any, **versions: str) -> Any:
    """Other libraries, as a patch."""
    facts = module.machine_facts

    def other(*given: Any) -> Any:
        found = facts(*given)
        return {**found, "versions": {**found["versions"], **versions}}

    return mock.patch.object(module, "machine_facts", other)


COLLATE = """
import functools
import torch
import words

SHIFT = 0

def stacked(rows):
    return {name: torch.stack([row[name] for row in rows]) + SHIFT for name in rows[0]}

def shifting(by):
    def collate(rows):
        batch = stacked(rows)
        return {**batch, "labels": batch["labels"] + by}
    return collate

class Masking:
    def __init__(self, first=0):
        self.first = first

    def __call__(self, rows):
        batch = stacked(rows)
        batch["labels"] = batch["labels"].clone()
        batch["labels"][:, : self.first] = -100
        return batch

def scaled(outputs, labels, num_items_in_batch=None, factor=1.0):
    return words.loss_of(outputs.logits, labels) * factor
"""
WORDS = """
import torch

def loss_of(logits, labels):
    wanted = labels[:, 1:].reshape(-1)
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 60), wanted)
"""
TRAINERS = """
from transformers import Trainer, TrainerCallback
import temper

class Own(Trainer):
    def training_step(self, *given):
        return super().training_step(*given) * 1.0

class Watching(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        state.best_metric = None

class Adding(temper.Extension):
    def step_end(self, state):
        state.metrics["more"] = 1.0
"""


def from_mine(module: str) -> Any:
    return importlib.import_module(module)


class Called(Route):
    """Somebody's own Trainer with the callback."""

    def write_files(self, setup: Setup) -> None:
        from tests.training.hf_bridge.tiny_trainer import Rows, tiny_lora, tiny_model

        (setup.folder / "mine").mkdir()
        for name, text in (("collate", COLLATE), ("words", WORDS), ("trainers", TRAINERS)):
            (setup.folder / "mine" / f"{name}.py").write_text(text)
        setup.model = tiny_lora if self.name.endswith("-lora") else tiny_model
        setup.is_table = self.name.endswith("-table")
        setup.options = {"max_steps": STEPS, "eval_strategy": "steps", "eval_steps": 2}
        if self.name.endswith("-best"):
            setup.options |= {"load_best_model_at_end": True, "save_steps": 2}
            setup.options |= {"metric_for_best_model": "loss"}
        setup.parts = {
            "train_dataset": lambda s: Rows(),
            "eval_dataset": lambda s: Rows(4, seed=9),
            "processing_class": None,
        }
        if self.name.endswith("-own"):
            setup.parts |= {
                "data_collator": lambda s: from_mine("collate").Masking(1),
                "compute_loss_func": lambda s: from_mine("collate").scaled,
                "trainer_class": lambda s: from_mine("trainers").Own,
                "optimizers": lambda s: own_optimizer(s),
                "callbacks": lambda s: [from_mine("trainers").Watching()],
                "processing_class": lambda s: tokenizer_of(s),
            }
            setup.hooks = [lambda s: from_mine("trainers").Adding()]
            setup.values = {"optimizer": torch.optim.AdamW, "lr": 1e-2, "gamma": 0.5}

    def train(self, setup: Setup, lines: list[str]) -> torch.Tensor:
        with importing_from(setup.folder / "mine"):
            return self._train(setup, lines)

    def _train(self, setup: Setup, lines: list[str]) -> torch.Tensor:
        from transformers import Trainer
        from transformers.trainer_callback import PrinterCallback

        from tests.training.hf_bridge.tiny_trainer import arguments, settings, weights

        assert setup.model is not None
        setup.values["model"] = model = setup.model()
        parts = {name: make(setup) for name, make in setup.parts.items() if make is not None}
        if setup.is_table:
            for name in ("train_dataset", "eval_dataset"):
                parts[name] = table_of(parts[name])
        kind = parts.pop("trainer_class", Trainer)
        trainer = kind(model, arguments(setup.folder, **setup.options), **parts)
        trainer.remove_callback(PrinterCallback)
        for change in setup.after_init:
            change(trainer)
        hooks = [make(setup) for make in setup.hooks]
        config = settings(setup.folder, **setup.values.get("settings", {}))
        called = TemperCallback("tiny", config, say=lines.append, hooks=hooks)
        trainer.add_callback(called)
        try:
            trainer.train(resume_from_checkpoint=called.resume_from())
        except BaseException as error:
            called.ended_by(error)
            raise
        return weights(trainer.model)


def own_optimizer(setup: Setup) -> tuple[Any, Any]:
    values = setup.values
    optimizer = values["optimizer"](values["model"].parameters(), lr=values["lr"])
    for group in optimizer.param_groups:
        group.update(values.get("group", {}))
    schedule = values.get("schedule", torch.optim.lr_scheduler.StepLR)
    return optimizer, schedule(optimizer, 2, gamma=values["gamma"])


def tokenizer_of(setup: Setup) -> Any:
    from tests.conftest import train_tiny_tokenizer

    tokenizer = train_tiny_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    if tokens := setup.values.get("tokens"):
        tokenizer.add_tokens(tokens)
    tokenizer.chat_template = setup.values.get("template")
    return tokenizer


def table_of(rows: Any) -> Any:
    if not hasattr(rows, "ids"):
        return rows
    from datasets import Dataset

    listed = [{"input_ids": ids.tolist(), "labels": ids.tolist()} for ids in rows.ids]
    return Dataset.from_list(listed).with_format("torch")


# -- the table -------------------------------------------------------------------------------------

R, W, U = Outcome.REFUSED, Outcome.RECORDED, Outcome.UNDISTURBED


def option(**values: Any) -> Callable[[Setup], object]:
    return lambda setup: setup.options.update(values)


def part(name: str, make: Callable[[Setup], Any]) -> Callable[[Setup], object]:
    return lambda setup: setup.parts.update({name: make})


def value(**values: Any) -> Callable[[Setup], object]:
    return lambda setup: setup.values.update(values)


def rows_with(index: int, num_rows: int = 22, seed: int = 0) -> Callable[[Setup], Any]:
    def make(_: Setup) -> Any:
        from tests.training.hf_bridge.tiny_trainer import Rows

        rows = Rows(num_rows, seed)
        rows.ids[index, 2] = (rows.ids[index, 2] + 1) % 60
        return rows

    return make


def model_with(change: Callable[[Any], object], lora: bool = False) -> Callable[[Setup], object]:
    """A change of the model before it trains."""

    def apply(setup: Setup) -> None:
        make = setup.model
        assert make is not None

        def changed() -> Any:
            model = make()
            change(model)
            return model

        setup.model = changed

    return apply


def lora_with(**values: Any) -> Callable[[Setup], object]:
    def apply(setup: Setup) -> None:
        def make() -> Any:
            from peft import LoraConfig, get_peft_model

            from tests.training.hf_bridge.tiny_trainer import tiny_model

            given = {
                **{"r": 2, "lora_dropout": 0.1, "target_modules": ["c_attn"]},
                **{"fan_in_fan_out": True, "modules_to_save": ["ln_f"], "task_type": "CAUSAL_LM"},
                **values,
            }
            return get_peft_model(tiny_model(), LoraConfig(**given))

        setup.model = make

    return apply


def set_config(**values: Any) -> Callable[[Any], object]:
    def change(model: Any) -> None:
        for name, one in values.items():
            setattr(model.config, name, one)

    return change


def nudge_frozen(model: Any) -> None:
    with torch.no_grad():
        model.base_model.model.transformer.wte.weight[5, 5] += 1e-3


def swap_frozen(model: Any) -> None:
    with torch.no_grad():
        wte = model.base_model.model.transformer.wte.weight
        wte[5, [0, 1]] = wte[5, [1, 0]]


def of_callback() -> list[Change]:
    route = "callback-full"
    arguments: dict[str, Any] = {
        **{"max_steps": 5, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1},
        **{"seed": 2, "data_seed": 5, "lr_scheduler_type": "linear", "warmup_steps": 1},
        **{"max_grad_norm": 0.5, "label_smoothing_factor": 0.1, "neftune_noise_alpha": 5.0},
        **{"dataloader_drop_last": True, "learning_rate": 1e-3, "weight_decay": 0.1},
        **{"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6, "optim": "adafactor"},
        **{"remove_unused_columns": False, "bf16": True, "ignore_data_skip": True},
        **{"metric_for_best_model": "loss", "accelerator_config": {"even_batches": False}},
        **{"num_train_epochs": 5, "lr_scheduler_kwargs": {"num_cycles": 0.25}},
        **{"label_names": ["labels"], "train_sampling_strategy": "sequential"},
        **{"prediction_loss_only": None},
    }
    arguments.pop("prediction_loss_only")
    changes = [
        Change(route, f"{name}={given!r}", option(**{name: given}), R, name)
        for name, given in arguments.items()
    ]
    recorded = {"eval_steps": 3, "per_device_eval_batch_size": 2, "gradient_checkpointing": True}
    changes += [
        Change(route, f"{name}={given!r}", option(**{name: given}), W, name)
        for name, given in recorded.items()
    ]
    for index in (0, 9, 21):
        rows = rows_with(index)
        changes.append(Change(route, f"row {index}", part("train_dataset", rows), R, "data"))
    changes += [
        Change(route, "a row less", part("train_dataset", rows_with(0, 21)), R, "data"),
        Change(
            route, "a held-out row", part("eval_dataset", rows_with(2, 4, 9)), R, "held_out_data"
        ),
        Change(
            route, "no held-out rows", part("eval_dataset", rows_with(0, 3, 9)), R, "held_out_data"
        ),
    ]
    configs = {"attn_pdrop": 0.3, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-3}
    configs |= {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}
    changes += [
        Change(route, f"config.{name}", model_with(set_config(**{name: one})), R, "model_config")
        for name, one in configs.items()
    ]
    changes += [
        Change(route, "another version of torch", of_versions(torch="9.0"), W, "torch"),
        Change(route, "another version of trl", of_versions(trl="9.0"), W, "trl"),
        Change(
            route,
            "another version of transformers",
            of_versions(transformers="9.0"),
            W,
            "transformers",
        ),
        Change(route, "another number of threads", of_machine(num_threads=7), W, "num_threads"),
        Change(route, "another GPU", of_machine(device="NVIDIA L4"), W, "device"),
    ]
    route = "callback-lora"
    loras: dict[str, Any] = {"lora_alpha": 32, "lora_dropout": 0.5, "use_rslora": True, "r": 4}
    loras |= {"target_modules": ["c_proj"], "modules_to_save": None, "use_dora": True}
    changes += [
        Change(route, f"{name}={one!r}", lora_with(**{name: one}), R, "lora")
        for name, one in loras.items()
    ]
    changes += [
        Change(route, "a weight of the base", model_with(nudge_frozen), R, "base_model"),
        Change(route, "two weights exchanged", model_with(swap_frozen), R, "base_model"),
    ]
    return changes + of_own_parts() + of_tables() + of_the_best()


def of_versions(**versions: str) -> Callable[[Setup], object]:
    from infrastructure.training.hf_bridge import trainer_facts

    return lambda setup: setup.patches.append(versions_of(trainer_facts, **versions))


def of_machine(**values: Any) -> Callable[[Setup], object]:
    from infrastructure.training.hf_bridge import trainer_facts

    read = trainer_facts.FactsReader.read

    def other(*given: Any) -> Any:
        return {**read(*given), **values}

    patch = mock.patch.object(trainer_facts.FactsReader, "read", other)
    return lambda setup: setup.patches.append(patch)


def of_own_parts() -> list[Change]:
    route = "callback-own"
    collate, words, trainers = (f"mine/{n}.py" for n in ("collate", "words", "trainers"))

    def collator(make: Callable[[Any], Any]) -> Callable[[Setup], object]:
        return part("data_collator", lambda s: make(from_mine("collate")))

    sgd = torch.optim.SGD
    return [
        Change(
            route,
            "the collator's file",
            edit_text(collate, "SHIFT = 0", "SHIFT = 1"),
            R,
            "data_collator",
        ),
        Change(
            route,
            "a file that it imports",
            edit_text(words, "[:, 1:]", "[:, 1:].clone()"),
            R,
            "compute_loss_func",
        ),
        Change(
            route, "the collator's attribute", collator(lambda m: m.Masking(2)), R, "data_collator"
        ),
        Change(route, "another collator", collator(lambda m: m.stacked), R, "data_collator"),
        Change(route, "a closure", collator(lambda m: m.shifting(1)), R, "data_collator"),
        Change(
            route,
            "a partial loss",
            part("compute_loss_func", lambda s: partial_of(2.0)),
            R,
            "compute_loss_func",
        ),
        Change(
            route, "no own loss", part("compute_loss_func", lambda s: None), R, "compute_loss_func"
        ),
        Change(route, "the Trainer's code", edit_text(trainers, "* 1.0", "* 2.0"), R, "trainer"),
        Change(
            route, "another class of Trainer", lambda s: s.parts.pop("trainer_class"), R, "trainer"
        ),
        Change(route, "a patched method", lambda s: s.after_init.append(patch_loss), R, "trainer"),
        Change(route, "an own learning rate", value(lr=1e-3), R, "optimizer"),
        Change(
            route, "an own decay of a group", value(group={"weight_decay": 0.5}), R, "optimizer"
        ),
        Change(route, "another optimizer", value(optimizer=sgd), R, "optimizer"),
        Change(route, "an own schedule's factor", value(gamma=0.25), R, "lr_scheduler"),
        Change(route, "an own schedule", value(schedule=StepAndHold), R, "lr_scheduler"),
        Change(route, "an own callback", lambda s: s.parts.pop("callbacks"), W, "own_callbacks"),
        Change(
            route,
            "an extension's code",
            edit_text(trainers, '["more"] = 1.0', '["more"] = 2.0'),
            R,
            "extensions",
        ),
        Change(route, "no extension", lambda s: s.hooks.clear(), R, "extensions"),
        Change(route, "a token", value(tokens=["<never>"]), R, "tokenizer"),
        Change(route, "a template", value(template="{{ messages }}"), R, "chat_template"),
        Change(route, "early stopping", add_early_stopping, R, "callbacks"),
    ]


class StepAndHold(torch.optim.lr_scheduler.StepLR):
    """Another class."""


def partial_of(factor: float) -> Any:
    import functools

    return functools.partial(from_mine("collate").scaled, factor=factor)


def patch_loss(trainer: Any) -> None:
    loss = type(trainer).compute_loss

    def other(*given: Any, **named: Any) -> Any:
        return loss(trainer, *given, **named) * 3

    trainer.compute_loss = other


def add_early_stopping(setup: Setup) -> None:
    from transformers import EarlyStoppingCallback

    setup.options |= {"metric_for_best_model": "loss"}
    setup.parts["callbacks"] = lambda s: [EarlyStoppingCallback(2)]


def doubled(batch: Any) -> Any:
    return {name: torch.tensor(cells) for name, cells in batch.items()}


def of_tables() -> list[Change]:
    route = "callback-table"

    def shuffled(setup: Setup) -> Any:
        return table_of(rows_of(setup)).shuffle(seed=1)

    def transformed(setup: Setup) -> Any:
        return table_of(rows_of(setup)).with_transform(doubled)

    return [
        Change(route, "row 9", part("train_dataset", rows_with(9)), R, "data"),
        Change(route, "the order of rows", part("train_dataset", shuffled), R, "data"),
        Change(route, "a transform", part("train_dataset", transformed), R, "data_transform"),
        Change(
            route, "a held-out row", part("eval_dataset", rows_with(2, 4, 9)), R, "held_out_data"
        ),
    ]


def rows_of(_: Setup) -> Any:
    from tests.training.hf_bridge.tiny_trainer import Rows

    return Rows()


def of_the_best() -> list[Change]:
    route = "callback-best"
    return [
        Change(route, "eval_delay", option(eval_delay=1), R, "eval_delay"),
        Change(route, "greater_is_better", option(greater_is_better=True), R, "greater_is_better"),
        Change(
            route,
            "compute_metrics",
            part("compute_metrics", lambda s: of_metrics),
            R,
            "compute_metrics",
        ),
    ]


def of_metrics(predictions: Any) -> dict[str, float]:
    return {"mine": 0.0}


def of_method(method: str) -> list[Change]:
    """What every method of TRL is made from."""
    generates = method in ("grpo", "rloo", "distillation")
    refers = method in ("dpo", "kto")
    changes = [
        Change(method, "row 14", edit_row(14), R, "data"),
        Change(method, "the order of rows", swap_rows, R, "data"),
        Change(method, "a held-out row", edit_row(3, "held_out.jsonl"), R, "held_out_data"),
        Change(method, "config.json", edit_json(config_file, rms_norm_eps=1e-3), R, "model_config"),
        Change(
            method, "its dropout", edit_json(config_file, attention_dropout=0.2), R, "model_config"
        ),
        Change(method, "tokenizer.json", strip_before_token, R, "tokenizer"),
        Change(
            method,
            "generation_config.json",
            edit_json(generation_file, eos_token_id=7),
            R if generates else U,
            "generation_config" if generates else "",
        ),
        Change(
            method,
            "the base's weights",
            edit_weights("base", nudge),
            R if refers or method in ("grpo", "rloo") else U,
            "ref_model" if refers or method in ("grpo", "rloo") else "",
        ),
    ]
    if refers:
        changes.append(
            Change(method, "two weights exchanged", edit_weights("base", swap), R, "ref_model")
        )
    settings: dict[str, dict[str, Any]] = {
        "dpo": {"loss_type": "ipo", "disable_dropout": False},
        "kto": {"desirable_weight": 2.0, "undesirable_weight": 0.5},
        "orpo": {"disable_dropout": False},
        "grpo": {"epsilon": 0.1, "scale_rewards": False, "loss_type": "grpo", "top_p": 0.5},
        "rloo": {"epsilon": 0.1, "normalize_advantages": True, "top_k": 5},
        "reward": {"center_rewards_coefficient": 0.1, "disable_dropout": False},
        "distillation": {"top_p": 0.5, "min_p": 0.1},
    }
    for name, given in settings[method].items():
        change = set_value("training", "method_settings", name, to=given)
        changes.append(Change(method, f"{name}={given!r}", change, R, name))
    if method != "reward":
        changes.append(Change(method, "beta", set_value("training", "beta", to=0.3), R, "beta"))
    if method in ("grpo", "rloo"):
        reward, scale = "mine/reward.py", "mine/scale.py"
        more = "return [x for x in scale.of(completions)]"
        plain = ["reward:reward", "format=.*[a-z].*"]
        changes += [
            Change(
                method,
                "the reward",
                edit_text(reward, "return scale.of(completions)", more),
                R,
                "reward_funcs",
            ),
            Change(method, "what it imports", edit_text(scale, "% 5", "% 3"), R, "reward_funcs"),
            Change(
                method, "the schema", edit_text("schema.json", "object", "array"), R, "reward_funcs"
            ),
            Change(
                method,
                "other rewards",
                set_value("training", "rewards", to=plain),
                R,
                "reward_funcs",
            ),
            Change(
                method,
                "temperature",
                set_value("training", "temperature", to=0.5),
                R,
                "temperature",
            ),
        ]
    if method == "distillation":
        teacher = "teacher"
        changes += [
            Change(
                method, "the teacher's weights", edit_weights(teacher, nudge), R, "teacher_model"
            ),
            Change(
                method,
                "the teacher's config.json",
                edit_json(lambda s: s.folder / teacher / "config.json", rms_norm_eps=1e-3),
                R,
                "teacher_model",
            ),
        ]
    return changes


def config_file(setup: Setup) -> Path:
    return setup.base / "config.json"


def generation_file(setup: Setup) -> Path:
    return setup.base / "generation_config.json"


def of_own_runs() -> list[Change]:
    changes = []
    for route in ("own", "own-lora"):
        is_lora = route == "own-lora"
        weights = (R, "base_model") if is_lora else (U, "")
        changes += [
            Change(route, "row 14", edit_row(14), R, "data"),
            Change(route, "the order of rows", swap_rows, R, "data"),
            Change(route, "a held-out row", edit_row(3, "held_out.jsonl"), R, "held_out_data"),
            Change(
                route, "config.json", edit_json(config_file, rms_norm_eps=1e-3), R, "model_config"
            ),
            Change(
                route,
                "its dropout",
                edit_json(config_file, attention_dropout=0.2),
                R,
                "model_config",
            ),
            Change(route, "tokenizer.json", strip_before_token, R, "tokenizer"),
            Change(route, "generation_config.json", edit_json(generation_file, eos_token_id=7), U),
            Change(route, "the base's weights", edit_weights("base", nudge), *weights),
            Change(route, "two weights exchanged", edit_weights("base", swap), *weights),
            Change(route, "the strategy", edit_text("mine/turns.py", "pass", "x = 1"), R, "code"),
            Change(route, "what it imports", edit_text("mine/scale.py", "% 5", "% 3"), R, "code"),
            Change(route, "the loss", edit_text("mine/loss.py", "0.1", "0.2"), R, "code"),
            Change(route, "another torch", of_versions_of_own(torch="9.0"), W, "torch"),
        ]
        settings = {"learning_rate": 1e-3, "seed": 4, "weight_decay": 0.2, "max_steps": 5}
        changes += [
            Change(route, name, set_value("training", name, to=one), R, name)
            for name, one in settings.items()
        ]
    changes.append(
        Change("own-lora", "alpha", set_value("model", "lora_config", "alpha", to=64), R, "alpha")
    )
    return changes


def of_versions_of_own(**versions: str) -> Callable[[Setup], object]:
    return lambda setup: setup.patches.append(versions_of(fingerprint, **versions))


def changes() -> list[Change]:
    """Every change of every route."""
    of_methods = [change for name in method_runs.methods_here() for change in of_method(name)]
    return [*of_callback(), *of_methods, *of_own_runs()]


# -- what means nothing ----------------------------------------------------------------------------


def touch(*names: str) -> Callable[[Setup], object]:
    def apply(setup: Setup) -> None:
        for name in names:
            for path in [setup.folder / name, *(setup.folder / name).rglob("*")]:
                os.utime(path, (1, 1))

    return apply


def rename_data(setup: Setup) -> None:
    (setup.folder / "rows.jsonl").rename(setup.folder / "renamed.jsonl")
    setup.values["data"]["path"] = str(setup.folder / "renamed.jsonl")


def move_base(setup: Setup) -> None:
    (setup.base).rename(setup.folder / "elsewhere")
    (setup.folder / "elsewhere").mkdir(exist_ok=True)
    shutil.move(setup.folder / "elsewhere", setup.folder / "moved" / "base")
    setup.values["model"]["name"] = str(setup.folder / "moved" / "base")


def other_columns(setup: Setup) -> None:
    file = setup.folder / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(dict(reversed(r.items()))) + "\n" for r in rows))


def resaved(setup: Setup) -> Any:
    from datasets import Dataset

    folder = setup.folder / "saved"
    table_of(rows_of(setup)).with_format(None).save_to_disk(folder)
    return Dataset.load_from_disk(str(folder)).with_format("torch")


def other_order(setup: Setup) -> Any:
    return table_of(rows_of(setup)).select_columns(["labels", "input_ids"])


def read_me(setup: Setup) -> None:
    (setup.base / "README.md").write_text("# a card\n")


def harmless() -> list[Change]:
    """Changes between two sessions that mean nothing."""
    options: dict[str, Any] = {
        **{"output_dir": "elsewhere", "run_name": "other", "logging_steps": 2, "save_steps": 2},
        **{"logging_first_step": True, "save_total_limit": 1, "disable_tqdm": True},
        **{"log_level": "error", "hub_model_id": "me/mine", "dataloader_pin_memory": False},
        **{"save_only_model": True, "logging_nan_inf_filter": False, "eval_on_start": False},
        **{"skip_memory_metrics": False, "include_num_input_tokens_seen": "no"},
        **{"torch_empty_cache_steps": 2, "report_to": []},
    }

    def at(setup: Setup, name: str, given: Any) -> None:
        setup.options[name] = str(setup.folder / given) if name == "output_dir" else given

    found = [
        Change("callback-full", f"{n}={g!r}", lambda s, n=n, g=g: at(s, n, g), U)  # type: ignore[misc]
        for n, g in options.items()
    ]
    found += [
        Change("callback-table", "saved and read again", part("train_dataset", resaved), U),
        Change("callback-table", "columns in another order", part("train_dataset", other_order), U),
        Change("callback-own", "times of files", touch("mine"), U),
        Change("callback-own", "nothing", lambda s: None, U),
        Change("callback-lora", "nothing", lambda s: None, U),
    ]
    for route in ("dpo", "own", "own-lora"):
        found += [
            Change(route, "the data file's name", rename_data, U),
            Change(route, "times of files", touch("base", "rows.jsonl", "mine"), U),
            Change(route, "the base's folder", move_base, U),
            Change(route, "a card beside the base", read_me, U),
            Change(route, "columns in another order", other_columns, U),
            Change(route, "log_frequency", set_value("training", "log_frequency", to=3), U),
            Change(
                route, "saved more rarely", set_value("training", "checkpoint_frequency", to=2), U
            ),
            Change(route, "fewer are kept", set_value("training", "keep_checkpoints", to=3), U),
        ]
    return found


KINDS: dict[str, type[Route]] = {"callback": Called}


class Table:
    """Routes that are begun when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.routes: dict[str, Route] = {}

    def result(self, change: Change) -> Result:
        if change.route not in self.routes:
            kind = KINDS.get(change.route.partition("-")[0], Deployed)
            self.routes[change.route] = kind(change.route, self.folder)
        return self.routes[change.route].outcome(change.apply)


def is_as_expected(change: Change, result: Result) -> bool:
    return result.outcome is change.expected and (not change.name or change.name in result.names)


def is_quiet(result: Result) -> bool:
    """Whether a person was told of nothing that differs."""
    words = ("not bit-exact", "was ", "the result is the same", "cannot be compared")
    return not any(word in line for line in result.lines for word in words if "note:" in line)


def main() -> int:
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder))
        for group, rows in (("changes", changes()), ("harmless", harmless())):
            for change in rows:
                result = table.result(change)
                fine = is_as_expected(change, result)
                fine = fine and (group == "changes" or is_quiet(result))
                failed += not fine
                names = ", ".join(result.names) or result.error[:120]
                mark = "ok " if fine else "BAD"
                print(f"{mark} {change!s:60} {result.outcome:12} {names}", flush=True)
            print(f"{len(rows)} {group}")
    print(f"{failed} not as expected")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
