"""G2 on whole runs: the power goes at any moment of a run, and the same command is given again.

    python -m tests.faults.run_power_cuts [--states 2000] [--to-the-end 150] [--seed 0]
        [--defect NAME] [--no-defects] [--keep FILE]

One run with a place is recorded, run directory, output folder and place; states that a power cut
may leave are drawn from it by a seed. In each, the product's own way of going on is asked which
run, which version and which files it finds; of some, the command is run to its end. Prints one
JSON line. `lost`: a version that was committed here, or confirmed at the place, is not found there;
`unsynced`: a file that is written once was not whole when a version was; `silent`: history or model
differ and nothing said so; `failed`: the command or its reader raised; `differing`: the end was
another model.
"""

import argparse
import contextlib
import hashlib
import io
import json
import logging
import pickle
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_files_repair import read_seal
from infrastructure.backup.replication import copier
from infrastructure.core.checksums import damaged_files, read_record
from infrastructure.core.errors import DamagedFileError, TemperError
from infrastructure.deployment import deploy_training, run_finalizer
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory
from tests.faults.copier_here import use_it as use_copier_here
from tests.faults.judge import Figures, complaints, print_figures, run_module
from tests.faults.recorded_files import Disk, Entry, Recorder, disks
from tests.faults.whole_runs import (
    configuration,
    import_all,
    losses_of,
    ran,
    result_of,
    run_in,
    train,
    wait_for_helpers,
)

ONCE = ("run.json", "before.json", "quarantine.jsonl")  # and the tokenizer's files


def _plain_tokenizer(run: RunDirectory, trainer: Any) -> None:
    trainer.adapter.tokenizer.save_pretrained(run.tokenizer)


def _tokenizer_without_sync() -> None:
    run_finalizer.save_tokenizer = _plain_tokenizer


def _no_repair() -> None:
    deploy_training.repair_run = lambda *_: None
    deploy_training.repair_finished = lambda *_: None
    deploy_training.repair_records = lambda *_: None


# What each planted defect changes: functions whose syncs do not happen, or parts of the product.
UNSYNCED = {
    "atomic_write without fsync": ("atomic_write", "write_text"),
    "directories not synced into their parents": ("make_directory", "prepare"),
}
REPLACED: dict[str, Callable[[], None]] = {
    "tokenizer without sync": _tokenizer_without_sync,
    "no repair": _no_repair,
}
DEFECTS = (*UNSYNCED, *REPLACED)


class Recorded:
    """One recorded run in `folder`, and the states of its disk."""

    def __init__(self, folder: Path, defect: str | None = None) -> None:
        self.folder, self.defect = folder, defect
        self.log: list[Entry] = []
        self.top = self.begin = 0
        self.expected: tuple[str, list[tuple[int, float]]] = ("", [])
        self.tokenizer: dict[str, bytes] = {}

    def record(self) -> None:
        """Train once, recorded, in a child."""
        self.folder.mkdir(parents=True)
        configuration(self.folder)  # writes the rows
        kept = self.folder.with_name("recorded.bin")
        done = ran(self.folder, lambda: self._recorded(kept))
        assert done.code == 0, done.output
        self.top, self.begin, self.log = pickle.loads(kept.read_bytes())
        run = run_in(self.folder)
        self.expected = result_of(run)
        self.tokenizer = {p.name: p.read_bytes() for p in (run / "tokenizer").iterdir()}

    def _recorded(self, kept: Path) -> None:
        use_copier_here()
        if self.defect in REPLACED and self.defect != "no repair":
            REPLACED[self.defect]()
        recorder = Recorder(self.folder, UNSYNCED.get(str(self.defect), ()))
        _mark_commits(recorder)
        recorder.start()
        begin = len(recorder.log)
        TrainingDeployment(configuration(self.folder), say=lambda line: None).run()
        recorder.mark("finished", True)
        kept.write_bytes(pickle.dumps((recorder.top, begin, recorder.log)))

    def states(self, count: int, draw: random.Random) -> Iterator[tuple[int, random.Random]]:
        """Lengths of the log, spread over all of it, each with a draw of its own."""
        lengths = range(self.begin + 1, len(self.log) + 1)
        for length in sorted(draw.choices(lengths, k=count)):
            yield length, random.Random(draw.random())

    def leave(self, disk: Disk, draw: random.Random) -> str:
        """Put a state in the folder's place; a name of its own."""
        shutil.rmtree(self.folder, ignore_errors=True)
        disk.leave(self.top, self.folder, draw)
        return _hash_of_tree(self.folder)

    def newest(self, what: str, length: int) -> int:
        """The highest step that a mark before `length` tells of."""
        steps = (e[2] for e in self.log[:length] if e[0] == "mark" and e[1] == what)
        return max(steps, default=0)

    def disks(self) -> Iterator[tuple[int, Disk]]:
        return disks(self.log, self.begin)


def _mark_commits(recorder: Recorder) -> None:
    publish, arrived = Store.publish, copier.Copier._arrived

    def marked(self: Store, *arguments: Any, **keywords: Any) -> str:
        name = publish(self, *arguments, **keywords)
        recorder.mark("committed", keywords["step"])
        return name

    def confirmed(self: copier.Copier, upload: Any) -> None:
        arrived(self, upload)
        if upload.is_confirmed:
            recorder.mark("confirmed", upload.manifest.step)

    Store.publish = marked  # type: ignore[method-assign]
    copier.Copier._arrived = confirmed  # type: ignore[method-assign]


def _hash_of_tree(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\n".encode())
        digest.update(path.read_bytes() if path.is_file() else b"/")
    return digest.hexdigest()


def faults_of(recorded: Recorded, length: int) -> list[str]:
    """What is wrong with the state in the folder, as the product's own reader finds it."""
    folder, committed = recorded.folder, recorded.newest("committed", length)
    confirmed = recorded.newest("confirmed", length)
    faults = []
    if confirmed and _newest_in(folder / "place") < confirmed:
        faults.append(f"lost: step {confirmed} was confirmed at the place")
    runs = [path.parent for path in (folder / "runs").glob("*/checkpoints")]
    if committed and (not runs or _newest_in(folder / "runs", "*/checkpoints") < committed):
        return [*faults, f"lost: step {committed} was committed"]
    if committed:
        faults += [f"unsynced: {name}" for name in _not_whole(recorded, runs[0])]
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            faults += _faults_of_reader(recorded, committed, output)
    except (TemperError, ValueError, OSError) as error:
        faults.append(f"failed: {type(error).__name__}: {error}")
    finally:
        logging.getLogger().removeHandler(handler)
    return faults


def _newest_in(place: Path, pattern: str = "*") -> int:
    steps = [0]
    for root in place.glob(pattern):
        store = Store(root)
        name, _ = store.newest()
        steps.append(store.read(name).step if name else 0)
    return max(steps)


def _not_whole(recorded: Recorded, run: Path) -> Iterator[str]:
    for name in ONCE:
        try:
            (run / name).read_bytes()
            if name.endswith(".json"):
                read_record(run / name)
        except (OSError, DamagedFileError):
            yield name
    for name, data in recorded.tokenizer.items():
        path = run / "tokenizer" / name
        if not path.is_file() or path.read_bytes() != data:
            yield f"tokenizer/{name}"


def _faults_of_reader(recorded: Recorded, committed: int, output: io.StringIO) -> Iterator[str]:
    config = configuration(recorded.folder)
    deployment = TrainingDeployment(config, say=lambda line: print(line, file=output))
    run = deployment._run_of_this_purpose()
    if run is None or not (run.checkpoints / "versions").is_dir():
        if committed:
            yield f"lost: no run is found, and step {committed} was committed"
        return
    options = deploy_training.place_options(config)
    if run.is_finished():
        deploy_training.repair_finished(run, options, deployment.report)
        text = output.getvalue()
        if damaged_files(run.final) and "final/" not in text:
            yield "silent: final/ is damaged"
        if losses_of(run.path) != recorded.expected[1] and "metrics.jsonl" not in text:
            yield "silent: metrics.jsonl is not complete"
        if not (run.path / "report.html").is_file():
            yield "silent: there is no report"
        if not read_seal(run.path):
            yield "silent: a finished run has no seal"
        return
    if not deployment_has_version(run):
        return
    deploy_training.repair_run(run, options, deployment.report)
    checkpoint = deployment._newest(run)
    step = step_of(checkpoint)
    if step < committed:
        yield f"lost: goes on from step {step}, and {committed} was committed"
    yield from (f"silent: {name}" for name in _not_whole(recorded, run.path) if committed)
    history = [entry for entry in losses_of(run.path) if entry[0] <= step]
    expected = [entry for entry in recorded.expected[1] if entry[0] <= step]
    if history != expected and "metrics.jsonl" not in output.getvalue():
        yield f"silent: metrics.jsonl lacks steps up to {step}"


def deployment_has_version(run: RunDirectory) -> bool:
    """Whether a version was ever begun to be named here."""
    return bool(Store(run.checkpoints).versions())


def faults_at_the_end(recorded: Recorded) -> list[str]:
    """What is wrong after the same command, in a child."""
    done = train(recorded.folder)
    wait_for_helpers()
    if done.code != 0:
        return [f"failed: {done.output[-400:]}"]
    found = result_of(run_in_newest(recorded.folder))
    if found[0] != recorded.expected[0]:
        return ["differing: another model"]
    if found[1] != recorded.expected[1] and "metrics.jsonl" not in done.output:
        return ["silent: other losses, or fewer"]
    return []


def run_in_newest(folder: Path) -> Path:
    """The finished run: what was left before its first version may lie beside it."""
    return max(path.parent for path in (folder / "runs").glob("*/final"))


def storm(
    folder: Path,
    num_states: int,
    num_to_the_end: int,
    seed: int,
    defect: str | None = None,
    keep: Path | None = None,
) -> Figures:
    """Draw states, and count what is wrong with them."""
    recorded = Recorded(folder / "work", defect)
    recorded.record()
    if defect == "no repair":
        _no_repair()
    draw = random.Random(seed)
    wanted: dict[int, list[random.Random]] = {}
    for length, own in recorded.states(num_states, draw):
        wanted.setdefault(length, []).append(own)
    ends = set(draw.sample(range(num_states), num_to_the_end))
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    examples: list[str] = []
    number = -1
    for length, disk in recorded.disks():
        for own in wanted.get(length, []):
            number += 1
            seed_of_state = own.random()
            seen.add(recorded.leave(disk, random.Random(seed_of_state)))
            faults = faults_of(recorded, length)
            if number in ends:
                recorded.leave(disk, random.Random(seed_of_state))
                faults += faults_at_the_end(recorded)
                counts["to_the_end"] += 1
            for fault in faults:
                counts[fault.partition(":")[0]] += 1
                if len(examples) < 20:
                    examples.append(f"at {length} of {len(recorded.log)}: {fault}")
            counts["drawn"] += 1
            if keep:
                keep.write_text(json.dumps({**counts, "examples": examples}))
    names = ("drawn", "to_the_end", "lost", "unsynced", "silent", "failed", "differing")
    figures = {name: counts[name] for name in names}
    return {"states": len(seen), "operations": len(recorded.log), **figures, "wrong": examples}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--states", type=int, default=2600)
    parser.add_argument("--to-the-end", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defect", choices=DEFECTS, help="only this one, planted")
    parser.add_argument("--defects", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    import_all()
    numbers = (options.states, options.to_the_end, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        figures = storm(Path(folder), *numbers, options.defect, options.keep)
    if options.defects and options.defect is None:
        arguments = ("--states", "100", "--to-the-end", "0", "--defect")
        found = [run_module("tests.faults.run_power_cuts", *arguments, name) for name in DEFECTS]
        caught = sum(bool(complaints("", each)) for each in found)
        figures |= {"mutants": len(found), "mutants_caught": caught}
    print_figures("G2 runs", figures)


if __name__ == "__main__":
    main()
