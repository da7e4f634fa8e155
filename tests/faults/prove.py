"""The durability proofs in their long form: `make prove-durability`. Prints one JSON line.

    python -m tests.faults.prove [G2 G15 …] [--anew]

Each row is a module that prints its figures, with the defects that it must find. Exits with 1 if a
figure is not what it must be. It takes hours, so it is broken off now and then: what holds of these
very sources is kept in `.prove/`, and the next time goes on with the rest.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from infrastructure.core.files import file_sha256, write_json
from tests.faults.judge import ROOT, Figures, complaints, run_module

# What has a clock in it comes first: the storms may share a machine, the ratios should not.
PROOFS = {
    "G6": ("benchmarks.checkpoint_stall", "what a training waits for"),
    "G7": ("benchmarks.checkpoint_drag", "what a save costs the steps beside it"),
    "G8": ("benchmarks.checkpoint_bytes", "what a save writes"),
    "G13": ("benchmarks.restore_speed", "a verified restore"),
    "G1": ("tests.faults.kills", "killed at any instant"),
    "G1 runs": ("tests.faults.run_kills", "whole runs, their helpers, their machines killed"),
    "G1 trainers": ("tests.faults.kill_storm_own_trainers", "people's own Trainers are killed"),
    "G1 ranks": ("tests.faults.rank_kills", "ranks, their agent, or all of them killed"),
    "G1 ends": ("tests.faults.end_kills", "killed up to the last byte of the last copy"),
    "G1 stackwise": ("tests.faults.stackwise_run", "killed in every phase of stack-wise training"),
    "G2": ("tests.faults.power_cuts", "the power goes"),
    "G2 runs": ("tests.faults.run_power_cuts", "the power goes in the middle of a whole run"),
    "G2 real": ("tests.faults.real_cuts", "a real file system is cut off its power"),
    "G3": ("tests.faults.refusing_disks", "a disk refuses at any operation"),
    "G4": ("tests.faults.damage", "bits change in what was saved"),
    "G4 runs": ("tests.faults.run_damage", "any file of a whole run is damaged"),
    "G5": ("tests.faults.lies", "a write says yes and keeps nothing"),
    "G9": ("tests.faults.drive_model", "a machine dies beside a Drive that lies"),
    "G17": ("tests.faults.place_storm", "a backup destination loses, changes and hides files"),
    "G10": ("tests.faults.stops", "told to stop at any instant"),
    "G11": ("tests.faults.recovery_model", "memory runs out, rows break the loss"),
    "G12": ("tests.faults.races", "two writers"),
    "notebooks": ("tests.faults.notebook_kills", "a kernel dies, and all cells are run again"),
    "G15": ("tests.faults.security", "hostile files, pickles, secrets"),
}


SOURCES = ("infrastructure", "colab", "notebooks", "benchmarks", "tests")


def main() -> int:
    options = parse_arguments()
    kept = Kept(ROOT / ".prove" / f"{sources_hash()}.json")
    if options.anew:
        kept.path.unlink(missing_ok=True)
    before, figures, wrong = kept.read(), {}, []
    for name in options.names or PROOFS:
        if name in before:
            figures[name] = before[name]
            print_line(f"{name}: proved before, of the same sources: {json.dumps(figures[name])}")
            continue
        try:
            figures[name] = proved(name)
        except subprocess.CalledProcessError as error:
            wrong.append(f"{name}: the proof itself failed with {error.returncode}")
            continue
        found = complaints(name, figures[name])
        wrong += found
        if not found:
            kept.add(name, figures[name])
    print(json.dumps(figures))
    for text in wrong:
        print_line(text)
    return 1 if wrong else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="G…", help="proofs (default: all)")
    parser.add_argument("--anew", action="store_true", help="forget what was proved before")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(PROOFS)):
        parser.error(f"no proof {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    return options


def proved(name: str) -> Figures:
    """The figures of one proof.

    Raises:
        CalledProcessError: it failed.
    """
    module, what = PROOFS[name]
    print_line(f"{name}: {what} ({module})")
    began = time.monotonic()
    figures = run_module(module)
    print_line(f"{json.dumps(figures)} after {time.monotonic() - began:.0f} s")
    return figures


@dataclass(frozen=True)
class Kept:
    """Figures of proofs that hold, in a file."""

    path: Path

    def read(self) -> dict[str, Figures]:
        return dict(json.loads(self.path.read_text())) if self.path.exists() else {}

    def add(self, name: str, figures: Figures) -> None:
        self.path.parent.mkdir(exist_ok=True)
        write_json(self.path, {**self.read(), name: figures})


def sources_hash(root: Path = ROOT) -> str:
    """Of all sources: a change of any of them makes every proof anew."""
    paths = [path for folder in SOURCES for path in (root / folder).rglob("*.py")]
    contents = (f"{path.relative_to(root)} {file_sha256(path)}\n" for path in sorted(paths))
    return hashlib.sha256("".join(contents).encode()).hexdigest()[:16]


def print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
