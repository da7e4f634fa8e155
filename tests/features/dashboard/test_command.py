"""`temper dashboard` as a command, on a real run that trains beside it."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import parse
from tests.deployment.runs import end, start_temper, when_saved, write_settings
from tests.slow import slow


def address(dashboard: "subprocess.Popen[str]") -> str:
    assert dashboard.stdout is not None
    return str(json.loads(dashboard.stdout.readline())["url"])


def page_at(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@slow
def test_a_dashboard_shows_a_real_training_and_outlives_it(tmp_path: Path) -> None:
    write_settings(tmp_path, num_epochs=100)
    dashboard = start_temper("dashboard", "--json", "--port", "0", folder=tmp_path)
    url = address(dashboard)
    assert "monitoring.no_run_yet" in page_at(url)
    training = start_temper("train", folder=tmp_path)
    run = when_saved(tmp_path, 2, training)
    assert run.name in page_at(url)
    code, _, _ = end(training, signal.SIGINT)
    assert code == 130
    assert "Loss" in page_at(f"{url}?run={run.name}")
    assert end(dashboard, signal.SIGINT)[0] == 0


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        (["dashboard", "nothing"], "what=run or checkpoint, name=nothing)"),
        (
            ["dashboard", "--port", "99999"],
            "dashboard.port_unavailable(host=127.0.0.1, port=99999, ",
        ),
    ],
)
def test_what_cannot_be_shown_is_wrong_input(
    tmp_path: Path, command: list[str], reported: str
) -> None:
    process = start_temper(*command, folder=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert reported in err


def test_to_a_person_the_dashboard_shows_where_it_is_and_who_may_see_it(tmp_path: Path) -> None:
    for host, last in (
        ("127.0.0.1", "dashboard.path_behind_proxy"),
        ("0.0.0.0", "dashboard.needs_token"),
    ):
        process = start_temper("dashboard", "--port", "0", "--host", host, folder=tmp_path)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert "dashboard.address" in lines[0]
        assert ("token=" in lines[0]) == (host == "0.0.0.0")
        assert lines[1].startswith(last)
        assert lines[2] == "dashboard.stops_with_ctrl_c()\n"
        assert end(process, signal.SIGINT)[0] == 0


def test_looking_loads_no_torch() -> None:
    probe = "import sys, infrastructure.features.dashboard.command; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_page_is_for_this_machine_alone_unless_another_host_is_given() -> None:
    options = parse(create_parser(), ["dashboard"])
    assert (options.host, options.port, options.run) == ("127.0.0.1", 8765, None)
