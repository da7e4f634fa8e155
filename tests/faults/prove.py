"""The durability proofs in their long form: `make prove-durability`. Prints one JSON line.

G1 kills, G2 power cuts, G3 refusing disks, G4 damage, G5 writes that lie; each with the defects
that must be found. Exits with 1 if a figure is not what it must be.
"""

import errno
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from infrastructure.backup.store import Store
from infrastructure.core.errors import CheckpointError
from tests.faults.failing_files import ERRORS, FailingFiles, LyingFiles
from tests.faults.kill_storm import MUTANTS
from tests.faults.memory_files import MemoryFiles
from tests.faults.store_history import ROOT, next_save_works, step_that_loads, tensors_at
from tests.faults.test_failing_disk import TWO_VERSIONS, error_of
from tests.faults.test_power_loss import NoDirectorySync, NoFileSync, history_of, lost_states

NUM_KILLS, NUM_MUTANT_KILLS = 200, 15
NUM_SAVES = 8
NUM_OBJECT_BITS = 5000


def kills() -> dict[str, Any]:
    """G1."""
    outcome = _storm("--kills", str(NUM_KILLS))
    for name, count in _storm("--kills", str(NUM_KILLS), "--in-background").items():
        outcome[name] += count
    found = {name: _storm("--kills", str(NUM_MUTANT_KILLS), "--mutant", name) for name in MUTANTS}
    caught = [
        n for n, o in found.items() if o["lost"] + o["damaged"] + o["differing"] + o["failed"]
    ]
    return {**outcome, "mutants": len(found), "mutants_caught": len(caught)}


def _storm(*arguments: str) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.faults.kill_storm", directory, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcome: dict[str, int] = json.loads(done.stdout)["G1"]
    return outcome


def power_cuts() -> dict[str, Any]:
    """G2."""
    files = MemoryFiles()
    states, lost = lost_states(files, history_of(files), NUM_SAVES)
    mutants = [kind() for kind in (NoFileSync, NoDirectorySync)]
    caught = sum(lost_states(mutant, history_of(mutant))[1] > 0 for mutant in mutants)
    return {"states": states, "lost": lost, "mutants": len(mutants), "mutants_caught": caught}


def refusing_disks() -> dict[str, Any]:
    """G3."""
    counting = FailingFiles(TWO_VERSIONS)
    assert error_of(counting) is None
    trials = lost = stuck = 0
    for error in ERRORS:
        for stays in (False, True):
            for fail_at in range(counting.count):
                failing = FailingFiles(TWO_VERSIONS, error, fail_at, stays)
                error_of(failing)
                failing.heal()
                trials += 1
                lost += step_that_loads(failing) < 2
                stuck += not next_save_works(failing)
    names = [errno.errorcode[number] for number in ERRORS]
    return {"errors": names, "trials": trials, "lost": lost, "next_save_failed": stuck}


def damage() -> dict[str, Any]:
    """G4."""
    memory = MemoryFiles()
    store = Store(ROOT, memory)
    for step in (1, 2):
        store.commit(tensors_at(step), {"step": step}, step=step)
    manifest = store.manifest_path(store.versions()[0])
    objects = [path for path in memory.files if "objects" in path.parts]
    draw = random.Random(0)
    flips = [(manifest, bit) for bit in range(8 * len(memory.files[manifest]))]
    for _ in range(NUM_OBJECT_BITS):
        path = draw.choice(objects)
        flips.append((path, draw.randrange(8 * len(memory.files[path]))))
    silent = sum(_is_silent(memory, path, bit) for path, bit in flips)
    return {"bits": len(flips), "silent": silent}


def _is_silent(memory: MemoryFiles, path: Path, bit: int) -> bool:
    """Whether all versions verify although this bit of one is flipped."""
    intact = memory.files[path]
    data = bytearray(intact)
    data[bit // 8] ^= 1 << bit % 8
    memory.files[path] = bytes(data)
    store = Store(ROOT, memory)
    try:
        for name in store.versions():
            store.verify(store.read(name))
    except CheckpointError:
        return False
    finally:
        memory.files[path] = intact
    return True


def lies() -> dict[str, Any]:
    """G5."""
    trials = believed = lost = 0
    for lie in ("nothing", "zeros", "one bit"):
        for lie_at in range(4):
            lying = LyingFiles(TWO_VERSIONS, lie_at, lie)
            trials += 1
            believed += error_of(lying) is None
            lost += step_that_loads(lying) < 2
    return {"trials": trials, "believed": believed, "lost": lost}


def main() -> int:
    figures = {
        "G1": kills(),
        "G2": power_cuts(),
        "G3": refusing_disks(),
        "G4": damage(),
        "G5": lies(),
    }
    print(json.dumps(figures))
    bad = ("lost", "damaged", "differing", "failed", "next_save_failed", "silent", "believed")
    broken = [f"{g}.{k}={v}" for g, f in figures.items() for k, v in f.items() if k in bad and v]
    missed = [g for g, f in figures.items() if f.get("mutants", 0) != f.get("mutants_caught", 0)]
    for text in [*broken, *(f"{g}: a mutant was not caught" for g in missed)]:
        print(text, file=sys.stderr)
    return 1 if broken or missed else 0


if __name__ == "__main__":
    sys.exit(main())
