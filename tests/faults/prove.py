"""The durability proofs in their long form: `make prove-durability`. Prints one JSON line.

    python -m tests.faults.prove [G2 G15 …]

Each row is a module that prints its figures, with the defects that it must find. Exits with 1 if a
figure is not what it must be.
"""

import argparse
import json
import subprocess
import sys
import time

from tests.faults.judge import complaints, run_module

# What has a clock in it comes first: the storms may share a machine, the ratios should not.
PROOFS = {
    "G6": ("benchmarks.checkpoint_stall", "what a training waits for"),
    "G7": ("benchmarks.checkpoint_drag", "what a save costs the steps beside it"),
    "G8": ("benchmarks.checkpoint_bytes", "what a save writes"),
    "G13": ("benchmarks.restore_speed", "a verified restore"),
    "G1": ("tests.faults.kills", "killed at any instant"),
    "G1 runs": ("tests.faults.run_kills", "whole runs, their helpers, their machines killed"),
    "G2": ("tests.faults.power_cuts", "the power goes"),
    "G3": ("tests.faults.refusing_disks", "a disk refuses at any operation"),
    "G4": ("tests.faults.damage", "bits change in what was saved"),
    "G5": ("tests.faults.lies", "a write says yes and keeps nothing"),
    "G9": ("tests.faults.drive_model", "a machine dies beside a Drive that lies"),
    "G10": ("tests.faults.stops", "told to stop at any instant"),
    "G11": ("tests.faults.recovery_model", "memory runs out, rows break the loss"),
    "G12": ("tests.faults.races", "two writers"),
    "notebooks": ("tests.faults.notebook_kills", "a kernel dies, and all cells are run again"),
    "G15": ("tests.faults.security", "hostile files, pickles, secrets"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="G…", help="proofs (default: all)")
    names = parser.parse_args().names or list(PROOFS)
    if unknown := sorted(set(names) - set(PROOFS)):
        parser.error(f"no proof {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    figures, wrong = {}, []
    for name in names:
        module, what = PROOFS[name]
        print(f"{name}: {what} ({module})", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            figures[name] = run_module(module)
            seconds = round(time.monotonic() - began)
            print(f"{json.dumps(figures[name])} after {seconds} s", file=sys.stderr, flush=True)
            wrong += complaints(name, figures[name])
        except subprocess.CalledProcessError as error:
            wrong.append(f"{name}: the proof itself failed with {error.returncode}")
    print(json.dumps(figures))
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
