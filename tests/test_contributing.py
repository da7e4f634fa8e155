"""What CONTRIBUTING.md shows of parts of one's own does what it says, as it stands there."""

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import temper
from infrastructure.commands import main as commands
from infrastructure.config import registries
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.named_object import load_object
from infrastructure.core.registry import Registry
from infrastructure.features.quantum.samplers.process_sampler import ProcessSampler
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from tests.features.conformance import planted
from tests.features.quantum.samplers.questions import random_model
from tests.one_python import run_commands
from tests.test_documents import Block, taken_apart

DOCUMENT = "CONTRIBUTING.md"
FILES = ("my_parts.py", "test_my_parts.py")
TINY = (
    *("--embedded-hidden-size", "32", "--embedded-num-layers", "1", "--embedded-num-heads", "2"),
    *("--embedded-intermediate-size", "32", "--device", "cpu"),
    *("--num-epochs", "2", "--batch-size", "9", "--num-workers", "0", "--max-length", "64"),
)


def block(language: str, start: str = "") -> Block:
    [found] = [
        block
        for block in taken_apart(DOCUMENT)[1]
        if block.language == language and block.text.startswith(start)
    ]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reader's own folder, with the files that the document has them save."""
    folder = tmp_path_factory.mktemp("reader")
    for name in FILES:
        (folder / name).write_text(block("python", f'"""{name}: ').text)
    (folder / "temper.yaml").write_text(block("yaml").text)
    (folder / "rows.sums").write_text("".join(f"{n}={n + 1}\n" for n in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        yield folder
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


def test_a_training_uses_one_part_of_each_kind(folder: Path) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert (
            commands.main(["train", "rows.sums", "--config", "temper.yaml", *TINY]) == ExitCode.DONE
        )
    [run] = [path.parent for path in (folder / "runs").glob("*/run.json")]
    assert "this is a custom adapter" in output.getvalue()
    assert "the slowest step took " in output.getvalue()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(record.get("bonus", 0) for record in records) == 100
    assert any(0 <= record.get("eval_accuracy", -1) <= 1 for record in records)
    assert [line.split()[0] for line in (run / "losses.txt").read_text().splitlines()][-1] == "10"
    assert any(name.startswith(run.name) for name in names_in(folder / "place"))
    phases = (run / "logs/training/training.jsonl").read_text()
    assert "stage 0" in phases
    assert "stage 1" in phases


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


KINDS = {
    *("data format", "strategy", "adapter", "storage backend", "sampler", "observer"),
    *("extension", "sink", "alert sink", "loss", "metric", "optimizer", "schedule"),
    *("setting of your own", "training method", "a setting of Temper", "a built-in part"),
    "a command",
}
SUITES = ("adapter", "data_source", "hook", "sink", "storage_backend", "strategy")


def table_rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_what_a_strategy_may_override_is_there() -> None:
    text = taken_apart(DOCUMENT)[0].partition("### Override the methods of a strategy")[2]
    methods = re.findall(r"`(\w+)`", " ".join(row[0] for row in table_rows(text)))
    assert "begin_step" in methods
    assert [name for name in methods if not hasattr(TrainingStrategy, name)] == []


def test_the_table_has_a_row_for_each_kind_and_names_what_there_is() -> None:
    text = taken_apart(DOCUMENT)[0].partition("## Add your own parts")[2]
    rows = table_rows(text.partition("### Example: one part of each kind")[0])
    assert {row[0] for row in rows} - {"To add", "---"} == KINDS
    named = set(re.findall(r"`(register_\w+|\w+Suite|temper\.\w+)`", text))
    modules = [importlib.import_module(f"infrastructure.features.conformance.{n}") for n in SUITES]
    suites_there = {name for module in modules for name in vars(module) if name.endswith("Suite")}
    there = {*suites_there, *temper.__all__, *(f"temper.{name}" for name in temper.__all__)}
    groups = {
        f"temper.{name}" for name in ("export_formats", "methods", "optimizers", "schedulers")
    }
    assert named - there == {"temper.yaml", *groups}
    assert suites_there <= named


def test_a_sampler_of_ones_own_is_used(folder: Path) -> None:
    sampler = ProcessSampler("my_parts:Lowest", {})
    try:
        answer = sampler.sample(random_model(4, 0, "SPIN"))
    finally:
        sampler.close()
    assert set(answer.first.sample.values()) == {-1}


def suites() -> list[tuple[str, str]]:
    module = ModuleType("shown")
    source = block("python", '"""test_my_parts.py').text
    sys.modules["my_parts"] = ModuleType("my_parts")
    try:
        exec(compile(source, "test_my_parts.py", "exec"), vars(module))
    finally:
        del sys.modules["my_parts"]
    classes = {name: found for name, found in vars(module).items() if name.startswith("Test")}
    return [(name, test) for name, found in classes.items() for test in planted.tests_of(found)]


@pytest.mark.parametrize(("name", "test"), suites())
def test_a_part_does_what_its_kind_must_do(
    name: str, test: str, folder: Path, tmp_path: Path
) -> None:
    shown = importlib.import_module("test_my_parts")
    getattr(getattr(shown, name)(), test)(tmp_path)


def test_a_sampler_does_what_dimod_wants(folder: Path) -> None:
    importlib.import_module("test_my_parts").test_lowest()


def test_the_entry_points_name_what_the_module_has(folder: Path) -> None:
    groups = tomllib.loads(block("toml", "[project.entry-points]").text)["project"]["entry-points"]
    known = {r.group: r for r in vars(registries).values() if isinstance(r, Registry)}
    for group, points in groups.items():
        for address in points.values():
            assert known[group].problem(address) is None
            assert known[group].get(address) is load_object(group, address)
    assert len(groups) == 9


def test_a_command_is_a_file_and_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("infrastructure.commands.runs")
    shown = block("python", '"""`temper runs`')
    exec(compile(shown.text, "runs.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(commands.COMMANDS, "runs", "list the runs of a folder")
    (folder / "elsewhere/a-run").mkdir(parents=True)
    (folder / "elsewhere/a-run/run.json").write_text("{}")
    assert commands.main(["runs", "--output-dir", str(folder / "elsewhere")]) == ExitCode.DONE
    assert capsys.readouterr().out == "a-run\n"


def test_a_feature_of_an_installed_package_is_everywhere(tmp_path: Path) -> None:
    for name in ("my_feature.py", "my_feature_settings.py", "my_feature_parts.py"):
        (tmp_path / name).write_text(block("python", f'"""{name}: ').text)
    points = tomllib.loads(block("toml", "[project.entry-points.").text)["project"]["entry-points"]
    info = tmp_path / "my_feature-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-feature\nVersion: 1.0\n")
    lines = [f"{name} = {address}" for name, address in points["temper.features"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[temper.features]", *lines]))
    (tmp_path / "c.yaml").write_text("greeting: {text: good morning}\n")

    path = f"{tmp_path}:{Path(temper.__file__).parents[1]}"
    train = ["train", "--preset", "ci", "--no-backups"]
    ended = run_commands(
        [
            ["--help"],
            ["train", "--help-all"],
            ["greet", "--greeting-text", "hi"],
            ["greet", "--config", "c.yaml"],
            [*train, "--config", "c.yaml"],
            [*train, "--greeting-text", "hi"],
        ],
        tmp_path,
        path,
    )
    assert [one.code for one in ended] == [ExitCode.DONE] * 6
    assert "  greet " in ended[0].output
    assert "--greeting-text" in ended[1].output
    assert [one.output for one in ended[2:4]] == ["hi\n", "good morning\n"]
    reports = [report.read_text() for report in tmp_path.glob("runs/*/report.html")]
    assert sum("<p>good morning</p>" in text for text in reports) == 1
    assert len(reports) == 2  # another training
    code = "from colab.form_groups import groups; print(groups()['greeting'])"
    environment = {**os.environ, "PYTHONPATH": path}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "['greeting.text']\n"
