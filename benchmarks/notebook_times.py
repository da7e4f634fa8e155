"""How long a person waits for a notebook: its first training step, and all of its cells.

    python -m benchmarks.notebook_times [NAME …]

Temper is installed already, as after the first cell of the first *Run all*. The quickstart is run
with the settings that it has for people, up to the first step, and then stopped; every notebook is
run from its first cell to its last, small, as the tests run it. `slow`: how many took longer than
they may. The limits are absolute, since a person feels them; they hold for two cores that do
nothing else. Prints one JSON line.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from infrastructure.monitoring.drawing.metrics_file import read_metrics
from tests.notebooks.kernels import notebook_in_kernel
from tests.notebooks.notebook_files import NOTEBOOKS, copy_into, variables, variables_of

FIRST_STEP_SECONDS, NOTEBOOK_SECONDS = 12.0, 60.0
LOOK_SECONDS = 0.05  # who looks all the time takes the time that is measured


def first_step_seconds(folder: Path) -> float:
    """From the start of the quickstart's first cell until its first step is in the metrics."""
    path = copy_into(folder / "first", NOTEBOOKS[0])
    environment = variables(folder, OUTPUT_DIR=str(folder / "runs"))
    del environment["TEMPER_PRESET"]
    with notebook_in_kernel(path, environment) as notebook:
        started = time.monotonic()
        for _ in notebook.run_all(LOOK_SECONDS):
            if any("loss" in record for record in _metrics(folder / "runs")):
                return round(time.monotonic() - started, 1)
    raise AssertionError("the quickstart ended without a step")


def _metrics(runs: Path) -> list[dict[str, float]]:
    return [record for path in runs.glob("*/metrics.jsonl") for record in read_metrics(path)]


def all_cells_seconds(folder: Path, notebook: Path) -> float:
    """From the start of a notebook's kernel until its last cell is done."""
    path = copy_into(folder / "notebook", notebook)
    started = time.monotonic()
    with notebook_in_kernel(path, variables_of(notebook, folder)) as running:
        for _ in running.run_all(LOOK_SECONDS):
            pass
        return round(time.monotonic() - started, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    names = [path.stem for path in NOTEBOOKS]
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks (default: all)")
    chosen = parser.parse_args().names or names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"no notebook {', '.join(unknown)}; there are {', '.join(names)}")
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        first = first_step_seconds(Path(folder))
    for path in NOTEBOOKS:
        if path.stem in chosen:
            with tempfile.TemporaryDirectory() as folder:
                seconds[path.stem] = all_cells_seconds(Path(folder), path)
    slow = (first > FIRST_STEP_SECONDS) + sum(each > NOTEBOOK_SECONDS for each in seconds.values())
    figures = {"first_step_seconds": first, "all_cells_seconds": seconds, "slow": slow}
    print(json.dumps({"notebook_times": figures}))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
