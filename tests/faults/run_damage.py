"""G4 on whole runs: one file of a run is damaged, and the same command is given again.

    python -m tests.faults.run_damage [--trials 320] [--seed 0] [--cases NAMES]
        [--defect NAME] [--no-defects] [--keep FILE]

Every file of a run directory: a bit flipped, cut, gone; of runs that were stopped, killed, or have
finished, with and without a place. And every file at the place, when the machine with the run
directory is gone. Prints one JSON line. `silent`: the damage is there still and nothing that was
said names it; `dead_ends`: the command did not come to the end of the training; `differing`: it
came to another model or to other losses.

Figures of trials are kept in FILE, and a trial that was made before is not made again.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_files_repair import FileKind, kind_of
from infrastructure.core.checksums import damaged_files, read_record
from infrastructure.core.errors import CheckpointError, DamagedFileError
from infrastructure.core.messages import CODES, WORDS
from infrastructure.deployment import deploy_training, model_repair
from tests.faults.judge import Figures, complaints, print_figures, run_module
from tests.faults.whole_runs import (
    STOP_AT,
    copy_of,
    import_all,
    result_of,
    run_in,
    train,
    wait_for_helpers,
)

DAMAGES = ("flip", "cut", "gone")


def _no_repair() -> None:
    deploy_training.repair_run = lambda *_: None
    deploy_training.repair_finished = lambda *_: None
    deploy_training.repair_records = lambda *_: None


def _no_sums() -> None:
    model_repair.damaged_files = lambda *_: []


# Planted defects, which must show in the figures.
DEFECTS: dict[str, Callable[[], None]] = {
    "no repair": _no_repair,
    "sums are not compared": _no_sums,
}
# Files that say nothing about a training: who holds a run, and how a copy stands at this moment.
PASSING = ("lock", "backup.lock", "backup.next.lock", "trained_by", "backup.json")
# Files that each going on, or each end, writes anew.
RENEWED = ("forecast.json", "summary.json", "report.html", "before.json")


@dataclass(frozen=True)
class Case:
    """A run as it was left, before one of its files is damaged.

    Attributes:
        is_gone: the machine is: the run directory with it.
    """

    name: str
    end_at: int | None = None
    kills: bool = False
    has_place: bool = True
    is_gone: bool = False

    def make(self, folder: Path) -> None:
        """The run, in `folder`."""
        folder.mkdir(parents=True)
        train(folder, end_at=self.end_at, kills=self.kills, has_place=self.has_place)
        wait_for_helpers()

    def files(self, folder: Path) -> list[Path]:
        """Those that are damaged, relative to the folder."""
        root = folder / "place" if self.is_gone else run_in(folder)
        return sorted(p.relative_to(folder) for p in root.rglob("*") if p.is_file())


CASES = (
    Case("stopped", STOP_AT),
    Case("killed", STOP_AT, kills=True),
    Case("finished"),
    Case("stopped, no place", STOP_AT, has_place=False),
    Case("finished, no place", has_place=False),
    Case("stopped, machine gone", STOP_AT, is_gone=True),
    Case("finished, machine gone", is_gone=True),
)


@dataclass(frozen=True)
class Trial:
    """One damage to one file."""

    case: Case
    path: Path
    damage: str
    draw: float

    @property
    def label(self) -> str:
        inside = [part[:12] if len(part) > 40 else part for part in self.path.parts[2:]]
        return f"{self.case.name}: {self.damage} of {'/'.join(inside)} at {self.draw:.3f}"


def do_damage(path: Path, damage: str, draw: float) -> bool:
    """Damage a file; False: there is nothing in it to damage so."""
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif not data:
        return False
    elif damage == "cut":
        path.write_bytes(data[: int(draw * len(data))])
    else:
        bit = int(draw * 8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
    return True


def verdict_of(trial: Trial, folder: Path, template: Path) -> str:
    """healed, named, silent, dead_end or differing, after the same command."""
    intact = (template / trial.path).read_bytes()
    if trial.case.is_gone:
        shutil.rmtree(folder / "runs")
    done = train(folder, has_place=trial.case.has_place)
    wait_for_helpers()
    if done.code != 0:
        return f"dead_end: {done.output[-500:]}"
    run = run_in(folder)
    expected = json.loads((template.parent / "result.json").read_text())
    try:
        model, losses = json.loads(json.dumps(result_of(run)))
    except FileNotFoundError:  # of the model, although the command has said that all is well
        return f"silent: {done.output[-500:]}"
    if model != expected[0] or losses != expected[1][-len(losses) :]:
        return f"differing: {done.output[-500:]}"
    if losses != expected[1] and "path=metrics.jsonl, problem=is missing" not in done.output:
        return f"silent: {done.output[-500:]}"
    if is_named(trial.path, done.output):
        return "named"
    if is_sound(trial, folder, run, intact):
        return "healed"
    return f"silent: {done.output[-500:]}"


def is_named(path: Path, output: str) -> bool:
    """Whether the damage is told of: the file by its name, an object or a version by its hash or
    number."""
    name = path.name
    if "objects" in path.parts:
        return name[:12] in output
    if "versions" in path.parts:
        return name[:12] in output or "backup.missing_checkpoint_restored(" in output
    inside = path.relative_to(Path(*path.parts[:2])).as_posix()
    return any(shown in output for shown in (f"={inside},", f"={inside})", f"/{name}"))


def is_sound(trial: Trial, folder: Path, run: Path, intact: bytes) -> bool:
    """Whether the damaged file is again what it has to be, or of no more use to anybody."""
    path = folder / trial.path
    if trial.case.is_gone:  # the run was brought back whole, so this was not what it came from
        return True
    if path.name in PASSING:
        return True
    if "objects" in path.parts or "versions" in path.parts:
        return not path.exists() or _all_whole(run)  # rotated away since, or written again
    if not path.exists():
        return False
    if "final" in path.parts:
        return not damaged_files(run / "final")
    found = path.read_bytes()
    if found == intact:
        return True
    if path.name in RENEWED:
        return path.suffix != ".json" or _is_record(path)
    kind = kind_of(path.relative_to(run).as_posix())
    if path.name in ("metrics.jsonl", "metrics.csv"):
        return True  # the losses are those of the undisturbed run
    return kind in (FileKind.LINES, FileKind.LIST, FileKind.RECORD) and found.startswith(
        intact[:-4]
    )


def _is_record(path: Path) -> bool:
    try:
        read_record(path)
    except DamagedFileError:
        return False
    return True


def _all_whole(run: Path) -> bool:
    store = Store(run / "checkpoints")
    try:
        for name in store.versions():
            store.verify(store.read(name))
    except CheckpointError:
        return False
    return True


def trials_of(templates: Path, cases: tuple[Case, ...], count: int, seed: int) -> Iterator[Trial]:
    """Every file with every damage once, in an order by chance, then again at other places."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        pairs = [
            (case, path, damage)
            for case in cases
            for path in case.files(templates / case.name)
            for damage in DAMAGES
        ]
        draw.shuffle(pairs)
        for case, path, damage in pairs:
            if made == count:
                return
            if damage == "gone" or (templates / case.name / path).stat().st_size:
                made += 1
                yield Trial(case, path, damage, draw.random())


def make_templates(templates: Path, work: Path, cases: tuple[Case, ...]) -> None:
    """Each case once, made in `work`, where its trials go on: paths are written down in a run."""
    templates.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if not (templates / case.name).exists():
            shutil.rmtree(work, ignore_errors=True)
            case.make(work)
            if case.end_at is None:
                result = json.dumps(result_of(run_in(work)))
                (templates / "result.json").write_text(result)
            work.rename(templates / f"{case.name}.part")
            (templates / f"{case.name}.part").rename(templates / case.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--trials", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="figures of trials that were made before")
    parser.add_argument("--cases", help="names of cases, between semicolons (default: all)")
    parser.add_argument("--defect", choices=DEFECTS, help="only this one, planted")
    parser.add_argument("--defects", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    os.environ[WORDS] = CODES  # as in tests: what is damaged is named in a code's values
    import_all()
    chosen = options.cases.split(";") if options.cases else [case.name for case in CASES]
    cases = tuple(case for case in CASES if case.name in chosen)
    verdicts = (
        json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    )
    with tempfile.TemporaryDirectory() as at:
        root = Path(at)
        templates, work = root / "templates", root / "work"
        make_templates(templates, work, cases)
        if options.defect:
            DEFECTS[options.defect]()
        for number, trial in enumerate(trials_of(templates, cases, options.trials, options.seed)):
            label = f"{number}: {trial.label}"
            if label in verdicts:
                continue
            template = templates / trial.case.name
            copy_of(template, work)
            do_damage(work / trial.path, trial.damage, trial.draw)
            verdicts[label] = verdict_of(trial, work, template)
            if options.keep:
                options.keep.write_text(json.dumps(verdicts, indent=1))
    figures = figures_of(verdicts)
    if options.defects and options.defect is None:
        cases = "--cases=finished, no place;stopped, no place"
        arguments = ("--trials", "60", "--seed", "1", cases, "--defect")
        found = [run_module("tests.faults.run_damage", *arguments, name) for name in DEFECTS]
        caught = sum(bool(complaints("", each)) for each in found)
        figures |= {"mutants": len(found), "mutants_caught": caught}
    print_figures("G4 runs", figures)


def figures_of(verdicts: dict[str, str]) -> Figures:
    words = [verdict.partition(":")[0] for verdict in verdicts.values()]
    counts = {word: words.count(word) for word in ("healed", "named", "silent", "differing")}
    wrong = [f"{label} → {v}" for label, v in verdicts.items() if v not in ("healed", "named")]
    figures = {"trials": len(words), **counts, "dead_ends": words.count("dead_end")}
    return {**figures, "wrong": wrong}


if __name__ == "__main__":
    main()
