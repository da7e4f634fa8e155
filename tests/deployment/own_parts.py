"""A module of parts of one's own, one of each kind, alone or as a package."""

import json
from pathlib import Path
from typing import Any

from tests.deployment.runs import small_settings

NAME = "my_parts"
MODULE = '''
"""Written by somebody who has `import temper` and nothing else."""
import json, os, signal, time
from pathlib import Path

import torch

import temper


class Strategy(temper.StandardTrainingStrategy):
    def phases(self, model, num_epochs):
        return [temper.Phase(f"stage {n}") for n in range(self.config.stages)]


class Adapter(temper.StandardModelAdapter):
    def notes(self):
        return [*super().notes(), "this is an adapter of one's own"]


def loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)


def accuracy(logits, targets):
    return (logits.argmax(dim=-1) == targets).float()


class Sink(temper.Sink):
    def __init__(self, directory):
        self.path = directory / "mine.txt"

    def write(self, record):
        with self.path.open("a") as file:
            file.write(json.dumps([record["step"], record.get("bonus")]) + "\\n")


class Bonus(temper.Extension):
    """A number of each step for the metrics."""

    def __init__(self, trainer):
        self.factor = trainer.training_config.settings["factor"]

    def step_end(self, state):
        if state.metrics:
            state.metrics["bonus"] = self.factor * state.step

    def checkpoint_saved(self, state):
        """The machine goes away, when a place has something."""
        step, _, place = os.environ.get("GOES_AWAY", "").partition(" ")
        if step == f"{state.step}":
            while not [*Path(place).glob("*/versions/*.json")]:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)


class Told(temper.Observer):
    def __init__(self, trainer):
        pass

    def train_end(self, state):
        Path("told.txt").write_text(f"{state.step}")


class Alerts:
    name = "mine"

    def __init__(self, run_directory):
        pass

    def send(self, alert):
        with Path("alerts.txt").open("a") as file:
            file.write(alert.rule + "\\n")

    def close(self):
        pass


def rows(path):
    for line in path.read_text().splitlines():
        prompt, answer = line.split("=")
        yield {"prompt": prompt, "completion": answer}


class Place(temper.FolderPlace):
    def __init__(self, url):
        super().__init__(Path(url.partition("://")[2]))

    def write(self, path, buffers):
        super().write(path, buffers)
        Path(self.root, "written_by").write_text(str(os.getpid()))
'''
# Each kind, its entry point group, the name there, and what of the module it is.
KINDS = {
    "strategies": ("in_stages", "Strategy"),
    "adapters": ("noting", "Adapter"),
    "losses": ("smoothed", "loss"),
    "metrics": ("hits", "accuracy"),
    "sinks": ("mine", "Sink"),
    "extensions": ("bonus", "Bonus"),
    "alert_sinks": ("written", "Alerts"),
    "formats": ("sums", "rows"),
    "backends": ("counted", "Place"),
}


def write_module(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.py").write_text(MODULE)
    return folder


def write_package(folder: Path) -> Path:
    """What `pip install my-parts` leaves in a folder of Python's path."""
    info = write_module(folder) / f"{NAME}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.2\n")
    (info / "RECORD").write_text(f"{NAME}.py,,\n{info.name}/METADATA,,\n")
    lines = [f"[temper.{group}]\n{name} = {NAME}:{part}\n" for group, (name, part) in KINDS.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def settings_of(folder: Path, by_name: bool = False) -> dict[str, Any]:
    """A run in `folder` with a part of one's own in every place that takes one: by address, or by
    the name that the installed package gives it."""

    def part(group: str) -> str:
        name, inside = KINDS[group]
        return name if by_name else f"{NAME}:{inside}"

    rows = folder / "rows.sums"
    rows.write_text("\n".join(f"{n}={n + 1}" for n in range(100, 124)))
    training = {
        **{"strategy": part("strategies"), "settings": {"stages": 2, "factor": 10}},
        **{"loss": part("losses"), "metrics": [part("metrics")], "max_steps": 8},
        **{"metrics_sinks": ["jsonl", part("sinks")]},
        **{"enabled_extensions": [part("extensions"), f"{NAME}:Told"]},
    }
    settings = small_settings(folder, **training)
    settings["model"]["adapter"] = part("adapters")
    settings["data"] |= {"path": str(rows), "format": part("formats")}
    monitor = {"alert_sinks": [part("alert_sinks")], "thresholds": {"gradient_norm": 1e-6}}
    place = f"{part('backends')}://{folder}/place"
    return {**settings, "monitor": monitor, "backup": {"place": place, "finish_seconds": 120}}


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "temper.yaml").write_text(json.dumps(settings))
