"""Write the kept runs again, with this version: `python -m tests.deployment.keep_runs`.

A release keeps one run of each kind, which the next version resumes. Each archive has the folder
in which `temper train` was called: its data, its configuration, and what the run wrote. Runs other
than `finished` are killed in the middle, copier included.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

KEPT = Path(__file__).parent / "kept"
KILLED_AFTER = {"interrupted": 23, "stack_wise": 13, "finished": None}  # steps
COMMAND = [sys.executable, "-m", "infrastructure", "train", "--config", "temper.yaml"]


def write(name: str, killed_after: int | None, folder: Path) -> None:
    with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    run_folder = folder / name
    for written in ("runs", "place", "cache"):
        shutil.rmtree(run_folder / written)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    training = subprocess.Popen(COMMAND, cwd=run_folder, env=environment, start_new_session=True)
    while killed_after is not None and training.poll() is None:
        metrics = [*run_folder.glob("runs/*/metrics.jsonl")]
        if metrics and metrics[0].read_text().count('"loss"') >= killed_after:
            os.killpg(training.pid, signal.SIGKILL)
        time.sleep(0.02)
    training.wait()
    time.sleep(3)  # helpers end when their parent is gone
    with tarfile.open(KEPT / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(run_folder, arcname=name)


if __name__ == "__main__":
    for kind, steps in KILLED_AFTER.items():
        with tempfile.TemporaryDirectory() as work:
            write(kind, steps, Path(work))
