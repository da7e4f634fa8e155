"""Helpers find this package and their modules wherever they are started, and say why they died."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infrastructure.core import helper_process
from infrastructure.core.helper_process import KEPT_BYTES, HelperProcess, module_path
from tests.foreign_folder import IS_MINE, NOTEBOOK, ROOT, foreign_folder, python_there

# Every module that is started as a helper, or to run in one of a pool.
MODULES = (
    "infrastructure.backup.replication.copier_process",
    "infrastructure.backup.writer.writer_process",
    "infrastructure.features.quantum.samplers.sampler_process",
    "infrastructure.data.preparation.row_encoder",
    "infrastructure.commands.main",
)

# A helper that imports each of these, and tells where its modules came from.
REPORTER = f"""
import importlib, json, sys
import infrastructure
for name in {MODULES!r}:
    importlib.import_module(name)
print(json.dumps([infrastructure.__file__, json.__file__, sys.path[-1], sys.argv[1:]]))
"""
START = f"""
import subprocess
from infrastructure.core.helper_process import HelperProcess
{NOTEBOOK}
helper = HelperProcess("reporter", "one", "two", stdout=subprocess.PIPE)
print(helper.stdout.read().decode())
assert helper.wait() == 0, helper.fate()
"""
POOL = """
import concurrent.futures.process, multiprocessing.resource_tracker
from infrastructure.core.helper_process import worker_pool
from infrastructure.core.redact import redact, is_secret_key
{how}
if __name__ == "__main__":
    with worker_pool(2, is_secret_key, ("x",)) as pool:
        print(*pool.map(redact, ["a", "b", "c"]))
"""
POOL_OF_A_SCRIPT = """
import sys
from infrastructure.core.helper_process import worker_pool
from infrastructure.core.redact import is_secret_key
class Own(str): pass
if __name__ == "__main__":
    with worker_pool(1, is_secret_key, ("x",), imports_main=len(sys.argv) > 1) as pool:
        print(pool.submit(len, Own("abc")).result())
"""
LEAVING = """
import os, sys
from infrastructure.core.helper_process import HelperProcess
HelperProcess("tests.core.speaking_helper", "outlive", sys.argv[1], str(os.getpid()))
os._exit(0)
"""
COPIED = """
import sys, time
from pathlib import Path
from infrastructure.backup.writer.background_writer import BackgroundWriter
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
store, place = Path(sys.argv[1]), sys.argv[2]
writer = BackgroundWriter(store, Retention(2))
writer.begin({"model/w": TensorBytes("U8", (9,), bytes(9))}, {}, step=1)
assert writer._fate() == "backup.writer_not_responding()", writer._fate()
print(writer.collect(wait=True))
writer.close()
with RunBackup(store, BackupConfig(place=place), run_id="run-1") as backup:
    status = backup.finish(60)
    print(status.confirmed_name, status.error, backup.num_copier_failures)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = foreign_folder(tmp_path_factory.mktemp("foreign"))
    (made / "reporter.py").write_text(REPORTER)
    return made


@pytest.fixture
def words() -> str:
    """A helper module that speaks and dies; found by this process's path."""
    return "tests.core.speaking_helper"


def test_a_helper_finds_our_modules_beside_the_users(folder: Path) -> None:
    """The reporter itself is a file of the user: their folder is looked at too, but last."""
    done = python_there(folder, START)
    assert done.returncode == 0, done.stderr
    package, standard, last, arguments = json.loads(done.stdout)
    assert package == str(ROOT / "infrastructure/__init__.py")
    assert Path(standard).is_relative_to(sys.base_prefix)
    assert (last, arguments) == (str(folder), ["one", "two"])


@pytest.mark.parametrize("how", ["", NOTEBOOK])
def test_workers_of_a_pool_find_our_modules_beside_the_users(folder: Path, how: str) -> None:
    done = python_there(folder, POOL.format(how=how))
    assert done.stdout.split() == ["a", "b", "c"], done.stderr
    assert IS_MINE not in done.stderr


def test_workers_import_the_users_script_only_if_it_defines_what_they_are_given(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(POOL_OF_A_SCRIPT)
    for arguments, output in ((["imports it"], "3\n"), ([], "")):
        done = subprocess.run(
            [sys.executable, script, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.stdout == output
        assert ("BrokenProcessPool" in done.stderr) == (not output), done.stderr


def test_checkpoints_are_written_and_copied_from_the_users_folder(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    done = python_there(folder, COPIED, str(tmp_path / "store"), str(tmp_path / "disk/place"))
    assert done.returncode == 0, done.stderr
    written, confirmed = done.stdout.splitlines()
    assert confirmed == f"{written} None 0"
    assert done.stderr == ""


def test_the_package_is_found_before_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that lies in site-packages, where this one is found by the folder it lies in."""
    other = tmp_path / "site-packages"
    (other / "infrastructure").mkdir(parents=True)
    standard = str(Path(json.__file__).parents[1])
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", ["", standard, str(other)])
    assert module_path() == [standard, str(ROOT), str(other)]


def test_what_the_user_gave_pythonpath_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('found')\n")
    helper = "from infrastructure.core.helper_process import HelperProcess\n"
    script = 'import subprocess\nh = HelperProcess("mine", stdout=subprocess.PIPE)\n'
    code = helper + script + "print(h.stdout.read().decode())\nassert h.wait() == 0, h.fate()"
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "found", done.stderr


def test_the_last_words_are_kept_without_secrets_and_bounded(words: str) -> None:
    helper = HelperProcess(words, "speak")
    assert helper.wait(60) == 3
    assert helper.last_words == "RuntimeError: no way to the place, token=***"
    assert helper.fate() == f"core.ended_with_exit_code(code=3, output= ({helper.last_words}))"
    assert len(helper._words) <= KEPT_BYTES


def test_a_helper_that_was_killed_names_its_signal(words: str) -> None:
    helper = HelperProcess(words, "sleep")
    assert helper.fate() is None
    helper.send_signal(signal.SIGKILL)
    helper.wait(60)
    assert helper.fate() == "core.killed_by_signal(signal=SIGKILL)"


def test_closing_its_pipes_ends_a_helper_that_reads_and_its_end_is_waited_for(words: str) -> None:
    helper = HelperProcess(words, "read", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert helper.stdin is not None
    helper.stdin.write(b"x")  # stays in the buffer, and nobody takes it
    assert not helper.ends_within(0.0)
    assert helper.fate(0.01) is None
    helper.close_pipes()
    helper.close_pipes()  # again: nothing happens
    assert helper.fate(60) == "core.ended_with_exit_code(code=0, output=)"


def test_the_output_of_a_helper_is_shown_where_that_is_wanted(
    words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for shows in (True, False):
        helper = HelperProcess(words, "speak", shows_words=shows)
        helper.wait(60)
        assert helper.last_words
        assert ("no way to the place" in capfd.readouterr().err) == shows


def test_a_helper_outlives_who_started_it(tmp_path: Path) -> None:
    """Nobody reads its words any more; saying some is no error then."""
    left = tmp_path / "said"
    python_there(ROOT, LEAVING, str(left))
    deadline = time.monotonic() + 60
    while not left.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left.read_text() == "it said it"


def test_the_environment_is_as_it_was() -> None:
    before = dict(os.environ)
    with helper_process.worker_pool(1, len, ("x",)) as pool:
        assert pool.submit(len, "abc").result() == 3
    assert dict(os.environ) == before


def test_no_process_of_a_pool_starts_while_others_are_watched() -> None:
    """One that dies meanwhile would end the thread that watches, and so leave the new one alone."""
    others = {process.pid for process in multiprocessing.active_children()}
    with helper_process.worker_pool(3, len, ("x",)) as pool:
        pool.submit(len, "abc").result()
        first = {process.pid for process in multiprocessing.active_children()} - others
        assert len(first) == 3
        assert list(pool.map(len, ["a"] * 9)) == [1] * 9
        assert {process.pid for process in multiprocessing.active_children()} - others == first


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", ""),
        (b" \n\n", ""),
        (b"first\n  last: token=abcdefgh123 \n \n", "last: token=***"),
        (b"x" * 301, "x" * 300),
        (b"\xff\r\n", "\ufffd"),
    ],
)
def test_the_last_line_is_the_last_that_is_not_blank(output: bytes, line: str) -> None:
    assert helper_process.last_line(output) == line


def test_a_script_that_a_worker_imports_does_not_train_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helper_process.refuse_to_train_in_worker()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match=r"^core\.script_trains_when_imported\(\)$"):
        helper_process.refuse_to_train_in_worker()
