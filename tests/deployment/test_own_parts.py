"""Whole runs with a part of one's own in every place that takes one, all from YAML and flags: from
the folder that `temper` is called in, and from an installed package, here and elsewhere."""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.describe import describe
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment import detached
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.features.specification.context import initialize_training
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.training.strategies import STRATEGIES
from infrastructure.training.strategies import StandardTrainingStrategy as Standard
from tests.deployment.own_parts import (
    KINDS,
    NAME,
    settings_of,
    write_module,
    write_package,
    write_settings,
)
from tests.deployment.runs import ROOT, copiers_are_forks, runs_of, small_settings
from tests.forks import outcome_of_forked

MODEL = "final/model.safetensors"


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Be called there as the console script is: the folder is not in Python's path, and nothing of
    one's own is imported yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
        sys.modules.pop(NAME, None)
        yield
        sys.modules.pop(NAME, None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a run with parts by their addresses, and what it has said."""
    folder = write_module(tmp_path_factory.mktemp("undisturbed"))
    write_settings(folder, settings_of(folder))
    own = '{"stages": 2, "factor": 100}'
    output = io.StringIO()
    with in_folder(folder), contextlib.redirect_stdout(output), copiers_are_forks():
        assert main(["train", "--config", "temper.yaml", "--settings", own]) == ExitCode.DONE
    [run] = runs_of(folder)
    return run, output.getvalue()


def test_a_run_has_a_part_of_ones_own_in_every_place(undisturbed: tuple[Path, str]) -> None:
    run, output = undisturbed
    folder = run.parent.parent
    assert "this is an adapter of one's own" in output
    label = "held-out loss (my_parts:loss)"
    assert label in output
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["bonus"] for record in records if "bonus" in record][-1] == 800
    assert any(0 <= record.get("eval_accuracy", -1) <= 1 for record in records)
    written = [json.loads(line) for line in (run / "mine.txt").read_text().splitlines()]
    assert [8, 800] in written
    assert (folder / "told.txt").read_text() == "8"
    assert "gradient_norm" in (folder / "alerts.txt").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["loss_function"] == "my_parts:loss"
    assert label in (run / "report.html").read_text()
    view = read_view(run)
    assert label.capitalize() in [line["name"] for line in view["headlines"]]
    assert summary["backup"]["confirmed_step"] == 8, summary["backup"]
    assert (folder / "place" / run.name / "versions").is_dir()
    log = (run / "logs/training/training.jsonl").read_text()
    assert "stage 0" in log
    assert "stage 1" in log


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was killed in its sixth step, with parts by the names that an
    installed package gives them."""
    folder = tmp_path_factory.mktemp("killed")
    package = write_package(folder / "site")
    settings = settings_of(folder, by_name=True)
    write_settings(folder, settings)
    flags = ("--strategy", "in_stages", "--metrics-sinks", "jsonl,mine", "--loss", "smoothed")
    path = os.pathsep.join([str(ROOT), str(package)])
    goes_away = {"GOES_AWAY": f"6 {folder}/place", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = outcome_of_forked(
        [sys.executable, "-P", "-m", "infrastructure", "train", "--config", "temper.yaml", *flags],
        cwd=folder,
        env={**os.environ, **goes_away},
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    [run] = runs_of(folder)
    return run


def test_a_run_records_where_its_parts_come_from(killed: Path) -> None:
    recorded = json.loads((killed / "run.json").read_text())["configuration"]["plugins"]
    for group, (name, part) in KINDS.items():
        origin = {"address": f"{NAME}:{part}", "package": "my-parts==1.2"}
        assert recorded[f"temper.{group}"][name] == origin
    assert recorded["temper.extensions"][f"{NAME}:Told"]["package"] == "my-parts==1.2"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """The folder of another machine: nothing of the first one's is in Python's path."""
    with in_folder(tmp_path):
        yield tmp_path


Errors = Callable[..., str]


@pytest.fixture
def errors(capsys: pytest.CaptureFixture[str]) -> Errors:
    """Call `temper` in this process, and give what it says to standard error."""

    def call(*arguments: str, code: ExitCode = ExitCode.DONE) -> str:
        assert main([*arguments]) == code, capsys.readouterr().err
        return capsys.readouterr().err

    return call


def test_going_on_without_the_package_states_what_to_install(
    killed: Path, elsewhere: Path, errors: Errors
) -> None:
    passing = shutil.ignore_patterns("*.part")  # its copier goes on without it
    shutil.copytree(killed, elsewhere / "runs" / killed.name, ignore=passing)
    output = errors("resume", killed.name, code=ExitCode.WRONG_INPUT)
    assert output.startswith("temper: config.plugin_package_missing(package=my-parts==1.2, ")
    assert " (in_stages)" in output
    assert output.count("\n") == 1


def test_another_machine_goes_on_from_the_place_to_the_same_weights(
    killed: Path, undisturbed: tuple[Path, str], elsewhere: Path, errors: Errors
) -> None:
    """All that is left of the first machine is what its copier has put at a place of one's own."""
    first = killed.parent.parent
    writer = int((first / "place/written_by").read_text())
    trained_by = (killed / "trained_by").read_text()
    assert f"process {writer} " not in trained_by, "the training has written it, not the copier"
    sys.path.append(str(first / "site"))
    place = f"counted://{first}/place"
    errors("backup", "restore", killed.name, "--place", place)
    with copiers_are_forks():
        errors("resume", killed.name, "--data-path", str(first / "rows.sums"))
    run = elsewhere / "runs" / killed.name
    assert (run / MODEL).read_bytes() == (undisturbed[0] / MODEL).read_bytes()
    steps = [json.loads(line)[0] for line in (run / "mine.txt").read_text().splitlines()]
    assert steps[-1] == 8
    recorded = json.loads((run / "run.json").read_text())["configuration"]["plugins"]
    assert "in_stages" in recorded["temper.strategies"]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("training.strategy", "my_parts:Alerts", "core.plugin_incomplete"),
        ("training.metrics_sinks", "my_parts:Alerts", "core.plugin_incomplete"),
        ("monitor.alert_sinks", "my_parts:Sink", "core.plugin_incomplete"),
        ("training.loss", "my_parts:Los", "core.plugin_attribute_missing"),
        ("model.adapter", "my_parts:rows", "core.plugin_call_mismatch"),
        ("model.adapter", "my_parts:Told", "core.plugin_incomplete"),
        ("training.strategy", "my_part:Strategy", "core.plugin_module_not_found"),
        ("backup.place", "my_parts:Sink://x", "core.plugin_incomplete"),
    ],
)
def test_what_cannot_be_used_is_reported_before_there_is_a_run(
    key: str, value: str, sentence: str, elsewhere: Path
) -> None:
    write_module(elsewhere)
    settings = settings_of(elsewhere)
    section, _, name = key.partition(".")
    settings.setdefault(section, {})[name] = value
    lines: list[str] = []
    with pytest.raises(ValueError, match=sentence):
        TrainingDeployment(DeploymentConfig(**settings), say=lines.append).run()
    assert [*elsewhere.glob("runs/*")] == []
    assert not any("parameters" in line for line in lines), "the model was loaded before"


def test_a_process_of_its_own_is_refused_what_it_could_not_import(tmp_path: Path) -> None:
    with STRATEGIES.registered("mine", type("Mine", (Standard,), {"__module__": "__main__"})):
        config = DeploymentConfig(**small_settings(tmp_path, strategy="mine"))
        with pytest.raises(ValueError, match=r"core\.plugin_not_importable"):
            detached.start(config)
    assert not (tmp_path / "runs").exists()


def test_ones_own_settings_are_shown_recorded_and_reached(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, settings={"stages": 3})
    config = DeploymentConfig(**settings)
    assert 'training.settings = {"stages": 3}' in describe(config)
    again = DeploymentConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again.training.settings == {"stages": 3}
    context = initialize_training(config)
    assert context.settings["stages"] == context.trainer.training_config.stages == 3


DECLARING = """
import temper


class InStages(temper.StandardTrainingStrategy):
    settings = {"stages": 2}

    def __init__(self, config, logger=None):
        super().__init__(config, logger)
        self.stages = config.stages

    def phases(self, model, num_epochs):
        return [temper.Phase(f"stage {n}") for n in range(self.stages)]
"""


def test_a_part_that_declares_its_settings_has_them(elsewhere: Path, errors: Errors) -> None:
    (elsewhere / "declaring.py").write_text(DECLARING)
    settings = small_settings(elsewhere, strategy="declaring:InStages", max_steps=1)
    write_settings(elsewhere, settings)
    train = ("train", "--config", "temper.yaml")
    slip = errors(*train, "--settings", '{"stagse": 3}', code=ExitCode.WRONG_INPUT)
    assert "config.setting_not_declared" in slip
    wrong = errors(*train, "--settings", '{"stages": "3"}', code=ExitCode.WRONG_INPUT)
    assert "config.setting_has_wrong_type" in wrong
    assert runs_of(elsewhere) == []
    errors(*train)
    [run] = runs_of(elsewhere)
    assert "stage 0" in (run / "logs/training/training.jsonl").read_text()
    assert initialize_training(DeploymentConfig(**settings)).settings == {"stages": 2}
    sys.modules.pop("declaring")


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of two steps with a strategy of its folder."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "turns.py").write_text(TURNS)
    with in_folder(folder):
        config = DeploymentConfig(**small_settings(folder, strategy="turns:InTurns", max_steps=2))
        TrainingDeployment(config, say=lambda _: None).run()
        sys.modules.pop("turns", None)
    [run] = runs_of(folder)
    return run


TURNS = """
import temper


class InTurns(temper.StandardTrainingStrategy):
    pass
"""


def test_going_on_from_another_folder_takes_the_part_from_where_it_was(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "second").mkdir()
    with in_folder(tmp_path / "second"):
        assert main(["resume", f"{stopped}@1"]) == ExitCode.DONE, capsys.readouterr().err
        sys.modules.pop("turns", None)
    file = stopped.parents[1] / "turns.py"
    taken = f"note: config.plugin_taken_from_original_file(address=turns:InTurns, file={file}"
    assert taken in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda file: file.unlink(), "config.plugin_file_missing"),
        (lambda file: file.write_text(TURNS + "# new"), "config.plugin_file_changed"),
    ],
)
def test_going_on_without_the_part_names_the_file(
    change: Callable[[Path], object], sentence: str, stopped: Path, tmp_path: Path, errors: Errors
) -> None:
    file = stopped.parents[1] / "turns.py"
    change(file)
    (tmp_path / "second").mkdir()
    with in_folder(tmp_path / "second"):
        output = errors("resume", f"{stopped}@1", code=ExitCode.WRONG_INPUT)
    lost = f"config.plugin_file_lost(file={file}, key=training.strategy, name=turns:InTurns, "
    assert output.startswith(f"temper: {lost}problem={sentence}(")
