"""G1 on whole runs in its long form: `python -m tests.faults.run_kills` prints one JSON line.

Two storms go side by side, each with its own instants: a run mostly waits for one core.
"""

import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.faults.judge import Figures, print_figures, run_module
from tests.faults.run_storm import MUTANTS

NUM_STORMS, NUM_KILLS_EACH, NUM_MUTANT_KILLS = 2, 100, 4


def in_a_folder(module: str, *arguments: str) -> Figures:
    """The figures of a proof that works in a folder of its own."""
    with tempfile.TemporaryDirectory() as directory:
        return run_module(module, directory, *arguments)


def storm(*arguments: str) -> Figures:
    return in_a_folder("tests.faults.run_storm", *arguments)


def whole_storm(seed: int) -> Figures:
    return storm("--kills", str(NUM_KILLS_EACH), "--seed", str(seed))


def storm_with_defect(name: str) -> Figures:
    return storm("--kills", str(NUM_MUTANT_KILLS), "--mutant", name)


def sums(all_figures: Iterable[Figures]) -> Figures:
    """Number by number, also where figures hold figures; seconds add up, too."""
    first, *others = all_figures
    return {
        name: sums(each[name] for each in (first, *others))
        if isinstance(value, dict)
        else value + sum(each[name] for each in others)
        for name, value in first.items()
    }


def main() -> None:
    with ThreadPoolExecutor(NUM_STORMS) as beside_each_other:
        outcome = sums(beside_each_other.map(whole_storm, range(NUM_STORMS)))
        found = list(beside_each_other.map(storm_with_defect, MUTANTS))
    caught = sum(bool(o["lost"] + o["damaged"] + o["differing"] + o["failed"]) for o in found)
    print_figures("G1 runs", {**outcome, "mutants": len(found), "mutants_caught": caught})


if __name__ == "__main__":
    main()
