"""A process that ends at once still writes what nobody closed, and runs its exit handlers."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import atexit
from infrastructure.core.process_end import leave_the_rest

class InCircle:
    def __init__(self):
        self.itself = self
        self.file = open("written.txt", "w")
        self.file.write("all of it")
        self.others = [open("bytes.bin", "wb"), open("both.bin", "w+b")]
        for other in self.others:
            other.write(b"all of it")
    def __del__(self):
        print("taken apart", flush=True)

atexit.register(print, "exit handlers run")
closed = open("closed.txt", "w")
closed.close()
InCircle()
if {leaves}:
    leave_the_rest()
"""


def ended(folder: Path, *, leaves: bool) -> list[str]:
    """What the script printed."""
    command = [sys.executable, "-c", SCRIPT.format(leaves=leaves)]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_nothing_is_taken_apart_and_nothing_is_lost(tmp_path: Path) -> None:
    assert ended(tmp_path, leaves=True) == ["exit handlers run"]
    for name in ("written.txt", "bytes.bin", "both.bin"):
        assert (tmp_path / name).read_text() == "all of it"


def test_python_by_itself_takes_all_apart(tmp_path: Path) -> None:
    assert ended(tmp_path, leaves=False) == ["exit handlers run", "taken apart"]
