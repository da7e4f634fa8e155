"""G15 in its long form: `python -m tests.faults.security` prints one JSON line."""

import sys
import tempfile
from pathlib import Path

from tests.conftest import save_tiny_llama
from tests.faults import hostile_input
from tests.faults.judge import Figures, print_figures
from tests.faults.pickle_scan import files_with_pickles
from tests.faults.written_files import run_with_secrets, scanner_finds_pickles

NUM_MUTATIONS = 100_000


def of_a_real_run(folder: Path, *flags: str) -> Figures:
    """What a run wrote that it should not have, and whether it ran a planted pickle."""
    ran = run_with_secrets(folder, save_tiny_llama(folder / "model"), *flags)
    leaks = ran.leaks()
    for leak in leaks if not flags else ():
        print(leak, file=sys.stderr)
    return {
        "files": sum(path.is_file() for path in ran.directory.rglob("*")),
        "leaks": len(leaks),
        "pickles": len(files_with_pickles(ran.directory)),
        "code_run": (folder / "mark").exists(),
        "exit_codes": ran.codes,
    }


def main() -> None:
    figures: Figures = hostile_input.figures(NUM_MUTATIONS)
    with tempfile.TemporaryDirectory() as directory:
        real, careless, scanned = (Path(directory) / name for name in ("real", "careless", "scan"))
        for folder in (real, careless, scanned):
            folder.mkdir()
        found = of_a_real_run(real)
        caught = [
            of_a_real_run(careless, "--careless")["leaks"] > 0,
            scanner_finds_pickles(scanned),
        ]
    figures["code_run"] += found.pop("code_run")
    figures["mutants"] += len(caught)
    figures["mutants_caught"] += sum(caught)
    print_figures("G15", {**figures, **found})


if __name__ == "__main__":
    main()
