"""Runs are found by the names that people give them, without opening a checkpoint."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infrastructure.models.model_path import not_found
from infrastructure.monitoring.records.run_list import (
    RUN_FILE,
    NoSuchRunError,
    find_run_path,
    finished_model,
    how_to_run_again,
    is_of_a_script,
    model_of_run,
    moment_of,
    names_version,
    naming_runs,
    run_folders,
    run_named,
    run_or_model,
    runs_in,
    split_version,
)
from tests.monitoring.written_run import write_run


def test_only_folders_with_a_run_are_runs_and_the_oldest_is_first(tmp_path: Path) -> None:
    newer, older = write_run(tmp_path, "2026-b"), write_run(tmp_path, "2025-a")
    (tmp_path / "notes").mkdir()
    assert runs_in(tmp_path) == [older, newer]
    assert runs_in(tmp_path / "nothing") == []


def test_a_run_with_a_name_of_its_own_is_as_old_as_its_beginning(tmp_path: Path) -> None:
    older, named, newer = (
        write_run(tmp_path, name) for name in ("20250101-120000-a", "mine", "20270101-120000-b")
    )
    moment = time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1))
    os.utime(named / RUN_FILE, (moment, moment))
    os.utime(named, (0, 0))
    assert runs_in(tmp_path) == [older, named, newer]
    (named / RUN_FILE).unlink()
    (named / "checkpoints/versions").mkdir(parents=True)
    os.utime(named, (moment, moment))
    assert run_folders(tmp_path) == [older, named, newer]


@pytest.mark.parametrize("runs_of", [runs_in, run_folders])
def test_a_folder_that_may_not_be_listed_is_not_empty(
    runs_of: Callable[[Path], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(PermissionError):
        runs_of(tmp_path)


@pytest.mark.parametrize(
    ("file", "is_known"),
    [
        ("config.json", True),
        ("adapter_config.json", True),
        ("temper_model.json", True),
        ("run.json", True),
        ("final", True),
        ("model.gguf", True),
        ("rows.jsonl", False),
    ],
)
def test_a_folder_with_a_model_or_a_run_is_not_taken_for_a_name(
    file: str, is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "runs", "20260101-120000-mine-00ff")
    (tmp_path / "mine-00ff").mkdir()
    (tmp_path / "mine-00ff" / file).touch()
    monkeypatch.chdir(tmp_path)
    expected = "mine-00ff" if is_known else str(run)
    assert run_or_model("mine-00ff", tmp_path / "runs") == expected
    assert model_of_run("mine-00ff", tmp_path / "runs") == expected
    assert run_or_model(run.name, tmp_path / "runs") == str(run)


def test_a_run_is_the_newest_or_an_id_or_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = write_run(tmp_path, "2025-a"), write_run(tmp_path, "2026-b")
    assert find_run_path(None, tmp_path) == newer.resolve()
    assert find_run_path("2025-a", tmp_path) == older.resolve()
    assert find_run_path(str(older), tmp_path / "elsewhere") == older.resolve()
    assert find_run_path(str(older / "final"), tmp_path / "elsewhere") == older.resolve()
    for run in (older, newer):
        (run / RUN_FILE).write_text(json.dumps({"config": {"run_name": {"value": run.name[5:]}}}))
    assert find_run_path("a", tmp_path) == older.resolve()
    (newer / RUN_FILE).write_text(json.dumps({"config": {"run_name": {"value": "Mein Läuf"}}}))
    assert run_named("Mein Läuf", tmp_path) == newer  # whose folder has other letters
    assert run_named("2025", tmp_path) is None  # a part of an id is no name
    timed = write_run(tmp_path, "20260101-120000-tickets-df18")
    assert run_named("tickets-df18", tmp_path) == timed  # as tables call it
    assert run_named("df18", tmp_path) is None
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_named("~/tickets-df18", tmp_path / "elsewhere") == timed


def test_a_name_is_known_alone_and_after_the_folder_of_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    older, newer = (write_run(runs, f"2026-{letter}-my-run") for letter in "ab")
    for run in (older, newer):
        (run / RUN_FILE).write_text(json.dumps({"config": {"run_name": {"value": "my-run"}}}))
    assert find_run_path("my-run", runs) == newer.resolve()
    for name in (f"{runs}/my-run", f"{runs}/my-run/final"):
        assert find_run_path(name, tmp_path / "others") == newer.resolve()
    assert run_or_model("my-run", runs) == str(newer)
    assert run_or_model(f"{runs}/my-run", tmp_path / "others") == str(newer)
    assert run_or_model(f"{runs}/my-run/final", runs) == str(newer / "final")
    for name in ("owner/my-run", "my-run/other", f"{runs}/my"):
        assert run_or_model(name, runs) == name
    versions = newer / "checkpoints/versions"
    versions.mkdir(parents=True)
    (versions / "000000000001-sha256-ab.json").write_text("")
    ends = ("@4", "@best", "/final@best", "/checkpoint-4")
    for name in (
        *(f"{runs}/my-run{end}" for end in ends),
        f"{versions}/000000000001-sha256-ab.json",
    ):
        about = f"(name={name}, run={split_version(name)[0]})"
        with pytest.raises(ValueError) as of_model:
            run_or_model(name, tmp_path / "others")
        assert str(of_model.value) == f"monitoring.checkpoint_instead_of_model{about}"
        with pytest.raises(ValueError) as of_run:
            find_run_path(name, tmp_path / "others")
        assert str(of_run.value) == f"monitoring.checkpoint_instead_of_run{about}"
    with pytest.raises(NoSuchRunError, match="what=run or checkpoint, name=my-rum,"):
        find_run_path("my-rum@4", runs)
    with pytest.raises(ValueError) as unknown:
        run_or_model("my-rum@4", runs)
    assert str(unknown.value) == (
        "monitoring.unknown_run_of_checkpoint(name=my-rum@4, run=my-rum,"
        f" output_dir={runs}, example={runs}/RUN)"
    )


def test_a_folder_of_data_does_not_hide_the_run_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is called as its data often."""
    runs, data = tmp_path / "runs", tmp_path / "notes"
    run = write_run(runs, "2026-a-notes")
    (run / RUN_FILE).write_text(json.dumps({"config": {"run_name": {"value": "notes"}}}))
    data.mkdir()
    (data / "rows.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert run_or_model("notes", runs) == str(run)
    assert model_of_run("notes", runs) == str(run)
    assert run_or_model("notes/rows.jsonl", runs) == "notes/rows.jsonl"
    (data / "config.json").write_text("{}")
    assert run_or_model("notes", runs) == model_of_run("notes", runs) == "notes"


def test_a_version_is_what_stands_behind_the_last_at_sign() -> None:
    assert split_version("a@b") == ("a", "b")
    assert split_version("/mnt/me@host/runs/a@best") == ("/mnt/me@host/runs/a", "best")
    for name in ("", "a", "a@", "/mnt/me@host/runs/a"):
        assert split_version(name) == (name, None)
    assert split_version("runs/a/checkpoint-120") == ("runs/a", "120")
    whole = "000000000120-sha256-ab"
    assert split_version(f"runs/a/checkpoints/versions/{whole}.json") == ("runs/a", whole)
    for name in ("runs/a/checkpoint-x", f"runs/a/other/{whole}.json", f"a/versions/{whole}"):
        assert split_version(name) == (name, None)


def test_a_name_of_a_version_is_none_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    names = (f"{tmp_path}/a@b", f"{tmp_path}/a@c", "a")
    assert [names_version(name) for name in names] == [False, True, False]


def test_a_run_that_has_lost_its_record_is_still_there(tmp_path: Path) -> None:
    whole = write_run(tmp_path, "20260102-030405-b")
    lost = tmp_path / "20260101-030405-a"
    for run in (lost, whole):
        (run / "checkpoints/versions").mkdir(parents=True)
    (tmp_path / "notes/checkpoints").mkdir(parents=True)
    assert run_folders(tmp_path) == [lost, whole]
    assert runs_in(tmp_path) == [whole]
    assert run_folders(tmp_path / "nothing") == []


def test_runs_of_one_second_are_in_the_order_of_its_parts(tmp_path: Path) -> None:
    names = ["20260101-120000-z-0001", "20260101-120000-a-00ff", "20260101-120000-m-ff00"]
    runs = [write_run(tmp_path, name) for name in reversed(names)]
    assert runs_in(tmp_path) == [*reversed(runs)]
    assert find_run_path(None, tmp_path) == runs[0].resolve()
    moment = time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1))
    assert moment_of(moment + 0.5) == ("20260101-120000", "8000")


def test_the_model_of_a_run_is_its_final_one_or_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, "20260101-120000-mine-00ff")
    assert model_of_run(run.name, tmp_path) == str(run)
    (run / "final").mkdir()
    assert model_of_run(run.name, tmp_path) == str(run / "final")
    assert model_of_run("mine-00ff", tmp_path) == str(run / "final")
    newer = write_run(tmp_path, "20260102-120000-mine-00ff")
    assert model_of_run("mine-00ff", tmp_path) == str(newer)
    assert finished_model(f"{tmp_path}/final") == str(run / "final"), "the newest finished one"
    assert finished_model(f"{tmp_path}/other") == f"{tmp_path}/other"
    assert finished_model(f"{tmp_path}/none/final") == f"{tmp_path}/none/final"
    assert run_or_model(f"{tmp_path}/final", tmp_path) == str(run / "final")
    (tmp_path / "final").mkdir()
    assert finished_model(f"{tmp_path}/final") == f"{tmp_path}/final"


@pytest.mark.parametrize(
    ("record", "is_script"),
    [
        ({"trainer": {}}, True),
        ({"trainer": {}, "configuration": {}}, False),
        ({"configuration": {}}, False),
    ],
)
def test_a_run_of_a_script_has_no_configuration(record: dict[str, object], is_script: bool) -> None:
    assert is_of_a_script(record) is is_script


def test_a_wrong_letter_is_answered_with_the_run_that_was_meant(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "2026-a-my-run")
    (run / RUN_FILE).write_text(json.dumps({"config": {"run_name": {"value": "my-run"}}}))
    for name in ("my-rum", f"{tmp_path}/runs/my-rum"):
        meant = r"neither_run_nor_model\(folder=.*runs, .*name=my-rum, hint=, known=my-run\)"
        with pytest.raises(ValueError, match=meant) as raised, naming_runs(tmp_path / "runs"):
            raise not_found(name, hub_reachable=False)
        assert "all_runs=monitoring.hint_list_runs()" in str(raised.value)
        assert str(raised.value).endswith("reason=models.hub_unreachable())")
        assert raised.value.__cause__ is None  # one sentence, and no chain of errors
        assert "2026-a-my-run" not in str(raised.value), "each run counts once"
    other = not_found("owner/name", hub_reachable=False)
    with pytest.raises(ValueError) as raised, naming_runs(tmp_path / "runs"):
        raise other
    assert raised.value is other


def test_where_no_run_is_a_wrong_name_is_not_taken_for_a_model_s_alone(tmp_path: Path) -> None:
    error = not_found("my-run", hub_reachable=False)
    with (
        pytest.raises(ValueError, match=r"monitoring\.no_model_and_no_runs") as raised,
        naming_runs(tmp_path),
    ):
        raise error
    assert f"(error={error}, folder={tmp_path})" in str(raised.value)
    of_hub = not_found("owner/name", hub_reachable=False)
    with (
        pytest.raises(ValueError, match=r"models\.model_not_found") as raised,
        naming_runs(tmp_path),
    ):
        raise of_hub
    assert raised.value is of_hub


def test_runs_are_listed_as_the_wrong_name_is_spelled(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "20260102-030405-small")
    (run / RUN_FILE).write_text(json.dumps({"config": {"run_name": {"value": "first"}}}))
    for wrong, known in (("other", "first"), ("20260102-x", "20260102-030405-small")):
        with pytest.raises(NoSuchRunError) as raised:
            find_run_path(wrong, tmp_path / "runs")
        name = f"core.unknown_name(what=run or checkpoint, name={wrong}, hint=, known={known})"
        assert str(raised.value) == (
            f"monitoring.unknown_run_or_checkpoint(output_dir={tmp_path}/runs, unknown_run={name},"
            " hint=monitoring.hint_list_runs())"
        )
    for letter in "abcd":
        write_run(tmp_path / "runs", f"2026010{letter}")
    with pytest.raises(NoSuchRunError, match=r"known=2026010d, 2026010c, 2026010b, more=2\)"):
        find_run_path("20260105-x", tmp_path / "runs")


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    write_run(tmp_path / "runs", "2025-a")
    with pytest.raises(ValueError, match=r"what=run or checkpoint, name=\.\./secret,"):
        find_run_path("../secret", tmp_path / "runs")


def test_no_run_explains_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as raised:
        find_run_path(None, tmp_path)
    assert str(raised.value) == f"monitoring.no_runs(output_dir={tmp_path})"


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("train.py --rows 'a b'", "monitoring.run_script_again(command=train.py --rows 'a b')"),
        ("/lib/colab_kernel_launcher.py -f x.json", "monitoring.run_cell_again()"),
        ("-c", "monitoring.run_your_script_again()"),
        ("/lib/pytest/__main__.py", "monitoring.run_your_script_again()"),
        ("a 'b", "monitoring.run_your_script_again()"),
        ("", "monitoring.run_your_script_again()"),
    ],
)
def test_the_script_of_a_trainers_run_is_named_if_it_is_known(command: str, how: str) -> None:
    assert how_to_run_again({"command": command}) == how
