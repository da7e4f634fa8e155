"""`temper checkpoints` and `temper export`: what they print, and what they refuse."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.store import Store
from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.exit_codes import ExitCode
from infrastructure.monitoring.drawing.formatting import format_moment
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from tests.deployment.runs import deploy, runs_of, small_config, small_settings
from tests.monitoring.written_run import write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of 3 steps; its copy is in `kept`."""
    folder = tmp_path_factory.mktemp("trained") / "work"
    folder.mkdir()
    deploy(small_config(folder, max_steps=3))
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run as it was then, in the folder in which commands are typed."""
    shutil.rmtree(trained)
    shutil.copytree(trained.with_name("kept"), trained)
    monkeypatch.chdir(trained)
    return runs_of(trained)[0]


def damage(run: Path, step: int) -> None:
    """Flip a bit in an object that only the version of `step` names."""
    manager = CheckpointManager(run / "checkpoints")
    store = Store(run / "checkpoints")
    packs = {s: set(store.read(p.stem).packs) for s, p in by_step(manager.store).items()}
    others = set().union(*(found for s, found in packs.items() if s != step))
    pack = max(packs[step] - others, key=lambda found: found.size_bytes)
    path = store.objects.path_of(pack.hash)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """The one JSON object on standard output, which holds nothing else."""
    return json.loads(capsys.readouterr().out)


def test_checkpoints_are_listed_with_what_they_are(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["checkpoints", "list"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert run.name in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("step")] == [
        *("3", "2", "1", "0")
    ]
    assert main(["checkpoints", "list", f"{run.name}@2", "--json"]) == ExitCode.DONE
    (row,) = printed(capsys)["checkpoints"]
    assert (row["step"], row["kind"], row["healthy"]) == (2, "scheduled", True)
    assert row["size_bytes"] > 10_000
    assert row["places"] == ["here"]


def test_verifying_finds_what_is_damaged_and_fails_by_its_exit_code(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["checkpoints", "verify", run.name]) == ExitCode.DONE
    assert "commands.num_intact(num_intact=4, total=4)" in capsys.readouterr().out
    damage(run, 2)
    assert main(["checkpoints", "verify", run.name]) == ExitCode.FAILED
    out = capsys.readouterr().out
    assert "commands.num_intact(num_intact=3, total=4)" in out
    assert re.search(
        r"step 2 here: backup\.object_problem\(.*problem=backup\.object_bytes_changed", out
    )
    assert main(["checkpoints", "verify", run.name, "--json"]) == ExitCode.FAILED
    found = printed(capsys)
    assert found["damaged"] == 1
    assert [row["step"] for row in found["checkpoints"] if row["problem"]] == [2]
    assert main(["checkpoints", "verify", f"{run.name}@3"]) == ExitCode.DONE


def test_a_damaged_manifest_is_listed_as_such(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = by_step(CheckpointManager(run / "checkpoints").store)[3]
    newest.write_bytes(newest.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["checkpoints", "list"]) == ExitCode.DONE
    assert "backup.manifest_changed" in capsys.readouterr().out
    assert main(["checkpoints", "verify"]) == ExitCode.FAILED


def test_what_is_stored_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, "mine")
    assert main(["checkpoints", "list", str(run)]) == ExitCode.DONE
    assert capsys.readouterr().out == "commands.no_checkpoint_yet(run_id=mine)\n"
    store = Store(run / "checkpoints")
    first = store.commit({}, {}, step=5, score=-0.25)
    last = store.commit({}, {}, step=7, kind="emergency", healthy=False)
    found = {name: store.read(name) for name in (first, last)}
    moments = {name: format_moment(manifest.created) for name, manifest in found.items()}
    configuration = DeploymentConfig(training={"best_metric": "exact_match"}).to_dict()
    for settings, label, score in (
        ({}, "held-out loss", "-0.2500"),
        ({"configuration": configuration}, "exact match", "0.2500"),
        ({"configuration": DeploymentConfig().to_dict()}, "held-out loss", "-0.2500"),
    ):
        write_record(run / "run.json", {"run_id": "mine", **settings})
        assert main(["checkpoints", "list", str(run)]) == ExitCode.DONE
        heading, columns, _, *rows = capsys.readouterr().out.splitlines()
        assert (heading, re.split("  +", columns)) == (
            "Run mine",
            ["checkpoint", "kind", "saved", label, "size"],
        )
        assert [re.split("  +", row) for row in rows] == [
            ["step 7", "emergency, not healthy", moments[last], "–", "0 B"],
            ["step 5", "scheduled", moments[first], score, "0 B"],
        ]
    store.manifest_path(last).write_text("{}")
    write_record(run / "run.json", {"run_id": "mine", "configuration": configuration})
    assert main(["checkpoints", "verify", str(run)]) == ExitCode.FAILED
    assert capsys.readouterr().out.splitlines() == [
        f"{last[:12]} here: backup.manifest_changed()",
        "step 5 here: commands.version_intact()",
        "commands.num_intact(num_intact=1, total=2)",
    ]
    assert main(["checkpoints", "list", str(run), "--json"]) == ExitCode.DONE
    unknown = dict.fromkeys(("step", "kind", "created", "healthy", "score", "size_bytes"))
    assert printed(capsys) == {
        "run": "mine",
        "path": str(run.resolve()),
        "metric": "exact_match",
        "checkpoints": [
            {"name": last, "places": ["here"], **unknown, "problem": "backup.manifest_changed()"},
            {
                **{"name": first, "places": ["here"], "problem": None, "step": 5},
                **{"kind": "scheduled", "healthy": True, "created": found[first].created},
                **{"size_bytes": 0, "score": 0.25},
            },
        ],
    }
    assert main(["checkpoints", "list", str(run)]) == ExitCode.DONE
    assert f"{last[:12]}" in capsys.readouterr().out.splitlines()[3].split("  ")[0]


def generate(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)("Reverse 101", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokens).logits


def test_what_is_exported_is_the_model_of_that_step(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / "rows.jsonl").unlink()  # no training data is needed
    capsys.readouterr()
    assert main(["export", run.name, "model", "--json"]) == ExitCode.DONE
    output = printed(capsys)
    assert (output["step"], output["folder"]) == (3, str(trained / "model"))
    assert torch.equal(generate(trained / "model"), generate(run / "final"))
    assert main(["export", f"{run.name}@1", "earlier"]) == ExitCode.DONE
    exported = f"step=1, run_id={run.name}, folder={trained / 'earlier'})"
    assert f"commands.model_exported({exported}\n" in capsys.readouterr().out
    assert not torch.equal(generate(trained / "earlier"), generate(run / "final"))


def test_a_lora_is_exported_as_a_lora(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    settings = small_settings(tmp_path, max_steps=1)
    settings["model"] = {"name": str(saved_llama), "lora_config": {"r": 2}}
    run, _ = deploy(DeploymentConfig(**settings))
    assert main(["export", str(run), "model"]) == ExitCode.DONE
    name = "adapter_model.safetensors"
    exported, final = load_file(tmp_path / "model" / name), load_file(run / "final" / name)
    assert exported.keys() == final.keys()
    assert all(torch.equal(exported[key], final[key]) for key in final)


def test_nothing_is_written_over(run: Path, trained: Path) -> None:
    (trained / "mine").mkdir()
    (trained / "mine/notes.txt").write_text("keep me")
    assert main(["export", run.name, "mine"]) == ExitCode.WRONG_INPUT
    assert [path.name for path in (trained / "mine").iterdir()] == ["notes.txt"]


def test_a_damaged_checkpoint_is_not_exported(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run, 2)
    assert main(["export", f"{run.name}@2", "model"]) == ExitCode.WRONG_INPUT
    assert "object" in capsys.readouterr().err.splitlines()[-1]
    assert not (trained / "model").exists()


@pytest.mark.parametrize("word", ["runs/a", "20261124-074404-embedded-ab12", "a@best"])
def test_a_run_where_an_action_belongs_is_answered_with_the_action(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", word]) == ExitCode.WRONG_INPUT
    error = capsys.readouterr().err
    assert "commands.action_missing_before_run" in error
    assert f"prog=temper checkpoints, run={word}, actions=list, verify" in error


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (
            "my-run",
            r"unknown_command\(word=my-run, known=list, verify",
        ),
        ("lst", r"unknown_command_meant\(word=lst, meant=temper checkpoints list\)"),
        ("runs/my-run", "commands.action_missing_before_run"),
    ],
)
def test_a_run_without_what_to_do_with_it_is_answered_with_the_line(
    word: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", word]) == ExitCode.WRONG_INPUT
    assert re.search(sentence, capsys.readouterr().err.strip())
