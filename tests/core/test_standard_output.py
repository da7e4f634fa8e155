"""A closed terminal, a closed pipe, a full disk: who prints goes on, and exits as it would."""

import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.core import standard_output
from infrastructure.core.standard_output import (
    LossyStream,
    is_reader_gone,
    lossy_output,
    lost_output_kept_in,
)

ROOT = Path(__file__).resolve().parents[2]
FULL = Path("/dev/full")

# Prints, waits until its output is gone, prints on, and leaves a file; a bar is drawn with tqdm.
PRINTER = """
import sys
from pathlib import Path
from tqdm import tqdm
from infrastructure.core.standard_output import lossy_output, lost_output_kept_in

with lossy_output(), lost_output_kept_in(Path(sys.argv[1])):
    print("before", flush=True)
    sys.stdin.readline()
    with tqdm(total=9, mininterval=0, file=sys.stderr) as bar:
        for number in range(9):
            print("line", number)
            print("note", number, file=sys.stderr)
            bar.update()
Path(sys.argv[2]).write_text("done")
sys.exit(7)
"""


def printer(tmp_path: Path, output: int, errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PRINTER, str(tmp_path / "kept"), str(tmp_path / "done")],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
    )


def go_on(process: subprocess.Popen[bytes], tmp_path: Path) -> list[str]:
    """Let it print on; what it kept."""
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(b"\n")
    assert process.wait(60) == 7, "its own exit code"
    assert (tmp_path / "done").read_text() == "done"
    return (tmp_path / "kept").read_text().splitlines()


def all_lines(kept: list[str]) -> bool:
    wanted = {f"{what} {number}" for what in ("line", "note") for number in range(9)}
    return wanted <= set(kept)


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """Its group is not told here: that SIGHUP saves and stops is another test's."""
    master, slave = pty.openpty()
    process = printer(tmp_path, slave, slave)
    os.close(slave)
    with open(master, "rb", buffering=0) as terminal:  # noqa: PTH123
        assert terminal.readline() == b"before\r\n"
    kept = go_on(process, tmp_path)
    assert all_lines(kept)
    assert not any("it/s" in line for line in kept), "a bar is no line"


def test_pipes_that_nobody_reads_any_more(tmp_path: Path) -> None:
    """As `| head -1` leaves them."""
    process = printer(tmp_path, subprocess.PIPE, subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"before\n"
    process.stdout.close()
    process.stderr.close()
    assert all_lines(go_on(process, tmp_path))


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with FULL.open("wb") as full:
        process = printer(tmp_path, full.fileno(), full.fileno())
    kept = go_on(process, tmp_path)
    assert all_lines(kept)
    assert kept.count("before") == 1


def test_a_lost_output_is_reported_once_and_the_streams_come_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(io.StringIO):
        name = "<full>"

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    full = Full()
    monkeypatch.setattr(sys, "stdout", full)
    with caplog.at_level(logging.WARNING), lossy_output():
        print("one")
        print("two")
        assert isinstance(sys.stdout, LossyStream)
        with lossy_output():
            print("three")
        assert isinstance(sys.stdout, LossyStream), "the outer one is not over"
    assert sys.stdout is full
    (record,) = caplog.records
    assert "core.output_lost(stream=<full>, " in record.getMessage()


def test_a_disk_with_space_again_takes_what_comes_then(tmp_path: Path) -> None:
    class Sometimes(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Sometimes()
    lossy = LossyStream(stream)
    with lost_output_kept_in(tmp_path / "logs/output.txt"):
        print("lost", file=lossy)
        stream.is_full = False
        print("there", file=lossy)
        print("half of", end=" ", file=lossy)
        print("a line", file=lossy)
        print("begun ", end="", file=lossy)
        stream.is_full = True
        with lost_output_kept_in(tmp_path / "other.txt"):
            print("elsewhere", file=lossy)
        print("here again", file=lossy)
    assert LossyStream.kept_in is None
    assert stream.getvalue() == "there\nhalf of a line\nbegun "
    assert (tmp_path / "other.txt").read_text() == "begun elsewhere\n"
    assert (tmp_path / "logs/output.txt").read_text() == "lost\nhere again\n"


def test_a_stream_without_a_failure_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with lossy_output():
        print("out")
        print("err", file=sys.stderr)
        assert sys.stdout.isatty() is False
        assert sys.stdout.encoding
    assert capsys.readouterr() == ("out\n", "err\n")


def test_a_file_that_cannot_keep_it_either_ends_no_work(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    (tmp_path / "file").touch()
    with lost_output_kept_in(tmp_path / "file/below"):
        print("lost", file=LossyStream(Full()))


def test_a_pipe_that_is_not_read_any_more_is_noticed() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        assert not is_reader_gone(stream)
        os.close(reader)
        assert is_reader_gone(stream)
    assert not is_reader_gone(stream), "it is closed"
    assert not is_reader_gone(io.StringIO())


def test_only_the_named_streams_are_made_lossy_and_none_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with lossy_output("stderr"):
        assert isinstance(sys.stderr, LossyStream)
        assert not isinstance(sys.stdout, LossyStream)
    stream = io.StringIO()
    LossyStream(stream).writelines(["a\n", "b"])
    assert stream.getvalue() == "a\nb"
    monkeypatch.setattr(standard_output, "in_notebook_kernel", lambda: True)
    with lossy_output():
        assert not isinstance(sys.stdout, LossyStream)
