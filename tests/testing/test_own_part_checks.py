"""What is wrong in a part of one's own is named before there is a run directory, with its line."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import PreflightError
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.forecast import forecast
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import runs_of, small_settings

NAME = "turns"
TURNS = """
import threading
import torch
import temper
from torch.nn.functional import cross_entropy as ce


class ByTurns(temper.StandardTrainingStrategy):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen, self.entries, self.lock = [], 0, threading.Lock()

    def phases(self, model, num_epochs):
        self.share = 1.0
        return super().phases(model, num_epochs)

    def enter_phase(self, model, optimizer, index):
        super().enter_phase(model, optimizer, index)
        self.entries += 1
        self.hook = model.register_forward_pre_hook(lambda module, given: None)

    def begin_step(self, step, examples):
        super().begin_step(step, examples)
        self.seen.append(step)
        self.turn = step % self.steps_per_epoch

    def train_step(self, *arguments, **keywords):
        assert self.entries == 1 and self.turn >= 0 and self.share
        return super().train_step(*arguments, **keywords)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop(NAME, None)
    yield tmp_path
    sys.modules.pop(NAME, None)


def config_of(folder: Path, code: str, **training: Any) -> DeploymentConfig:
    (folder / f"{NAME}.py").write_text(code)
    settings = small_settings(folder, **{"max_steps": 2, **training})
    return DeploymentConfig(**{**settings, "enable_testing": True})


def refusal(config: DeploymentConfig) -> str:
    with pytest.raises(PreflightError) as caught:
        TrainingDeployment(config, say=lambda line: None).run()
    assert runs_of(Path(config.output_dir).parent) == []
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "takes"),
    [
        ("phases", "model, num_epochs"),
        ("enter_phase", "model, optimizer, index"),
        ("begin_step", "step, examples"),
        ("train_step", "*arguments, **keywords"),
        ("rate_factor", "total_steps"),
        ("update_parameters", "*arguments"),
        ("evaluating", ""),
    ],
)
def test_a_strategy_is_tried_before_there_is_a_run(method: str, takes: str, folder: Path) -> None:
    code = (
        "import temper\nclass ByTurns(temper.StandardTrainingStrategy):\n"
        f"    def {method}(self, {takes}):\n        return {{}}['layers']\n"
    )
    refused = refusal(config_of(folder, code, strategy=f"{NAME}:ByTurns"))
    assert f"KeyError: 'layers', place=turns.py:4 ({method})" in refused
    assert refused.count("KeyError") == 1


def test_an_error_of_ours_names_the_line_that_called(folder: Path) -> None:
    code = (
        "import temper\nclass ByTurns(temper.StandardTrainingStrategy):\n"
        "    def train_step(self, model, batch, *arguments, **keywords):\n"
        "        return super().train_step(model, {}, *arguments, **keywords)\n"
    )
    refused = refusal(config_of(folder, code, strategy=f"{NAME}:ByTurns"))
    assert "place=turns.py:4 (train_step)" in refused


def test_what_one_method_sets_another_may_read(folder: Path) -> None:
    """Nothing of the trial stays: the run enters its phase once, and begins with its first step."""
    config = config_of(folder, TURNS, strategy=f"{NAME}:ByTurns")
    lines: list[str] = []
    TrainingDeployment(config, say=lines.append).run()
    [run] = runs_of(folder)
    assert any("deployment.forecast_summary" in line for line in lines)
    checks = json.loads((run / "checks.json").read_text())[0]["checks"]
    assert [c["status"] for c in checks if c["name"] == "own strategy"] == ["pass"]


def test_a_trial_leaves_no_trace_in_model_and_strategy(folder: Path) -> None:
    copied = TURNS.replace("threading.Lock()", "None")
    config = config_of(folder, copied, strategy=f"{NAME}:ByTurns")
    forecast(config)
    trainer = TrainerFactory().for_run(config)
    model = trainer.initialize_model()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    from infrastructure.testing.preflight import preflight

    preflight(trainer, folder)
    strategy: Any = trainer.strategy
    assert (strategy.seen, strategy.entries, strategy.entered) == ([], 0, -1)
    assert not model._forward_pre_hooks
    assert all(p.grad is None and p.equal(weights[name]) for name, p in model.named_parameters())


BY_LAYERS = """
import torch
import temper


class ByTurns(temper.StandardTrainingStrategy):
    def begin_step(self, step, examples):
        super().begin_step(step, examples)
        self.turn = step
        torch.rand(3)

    def train_step(self, model, *arguments, **keywords):
        for number, layer in enumerate(model.model.layers):
            layer.requires_grad_(number % 2 == self.turn % 2)
        return super().train_step(model, *arguments, **keywords)
"""


def test_a_run_comes_to_the_same_bits_with_the_trial_and_without(folder: Path) -> None:
    models = []
    for is_tried in (True, False):
        config = config_of(folder, BY_LAYERS, strategy=f"{NAME}:ByTurns")
        config.enable_testing = is_tried
        config.output_dir = str(folder / f"runs-{is_tried}")
        TrainingDeployment(config, say=lambda line: None).run()
        [model] = Path(config.output_dir).glob("*/final/model.safetensors")
        models.append(model.read_bytes())
    assert models[0] == models[1]


LOSS = r"function=loss 'turns:focal' at turns\.py:\d+ \(focal\)"
FOCAL = """
import torch
from torch.nn.functional import cross_entropy as ce


def focal(logits, targets):
    return ce(logits, targets, reduction="none")%s
"""


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (".mean()", rf"models\.token_function_shape\({LOSS}, returned=\[\], count=\d+"),
        (".detach()", rf"models\.loss_without_gradient\(.*{LOSS}"),
        ("[1:, None]", rf"models\.token_function_shape\({LOSS}, returned=\[\d+, 1\], count=\d+"),
        (
            "[len(targets)]",
            r"testing\.own_code_raised\(error=IndexError: .*, place=turns.py:\d+ \(focal\)",
        ),
    ],
)
def test_a_loss_is_tried_before_there_is_a_run(what: str, code: str, folder: Path) -> None:
    refused = refusal(config_of(folder, FOCAL % what, loss=f"{NAME}:focal"))
    assert re.search(rf"testing\.preflight_failed\(failed=own loss: {code}", refused), refused
    assert refused.count("focal)") == 1


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (".mean()", "models.token_function_shape(function=metric 'turns:focal' at turns.py:"),
        ("[len(targets)]", "testing.own_code_raised(error=IndexError: "),
    ],
)
def test_a_metric_is_tried_before_there_is_a_run(what: str, error: str, folder: Path) -> None:
    refused = refusal(config_of(folder, FOCAL % what, metrics=[f"{NAME}:focal"]))
    assert f"own metrics: {error}" in refused
    assert "(focal)" in refused


MEASURES_IN_NUMPY = """
import temper


class Measures(temper.StandardModelAdapter):
    def sum_metrics(self, model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        total = float(logits.float().numpy().sum())
        return {**super().sum_metrics(model, batch), "eval_mean": (total, 1)}
"""


def test_a_loss_and_a_metric_that_are_right_pass(folder: Path) -> None:
    """An adapter's own metrics need no gradient, so they may leave torch."""
    own = {"loss": f"{NAME}:focal", "metrics": [f"{NAME}:focal"]}
    config = config_of(folder, FOCAL % "" + MEASURES_IN_NUMPY, **own)
    config.model.adapter = f"{NAME}:Measures"
    TrainingDeployment(config, say=lambda line: None).run()
    [run] = runs_of(folder)
    checks = json.loads((run / "checks.json").read_text())[0]["checks"]
    statuses = {check["name"]: check["status"] for check in checks}
    assert statuses["own loss"] == statuses["own metrics"] == "pass"
