"""Whole runs with a place, killed at any instant from the first import to the last byte of the last
copy, by the same command again and again; until it says that all is done. Then only the place is
left, and the same command once more has to give the finished model back.

    python -m tests.faults.end_storm DIRECTORY [--kills 300] [--seed 0] [--only full,lora]

A death is SIGKILL of the training, of it and its helpers, of its copier alone, or of the machine:
its disk is gone, too. In some attempts the place is away: then nothing may be written below it, and
the exit code says so. What was done is kept in DIRECTORY, so a storm that is broken off goes on.
Prints one JSON line. `lost`, `damaged`: as in `run_storm`; `differing`: the model that the place
gives back, or the losses, are not those of the undisturbed run; `failed`: another exit code than it
has to be; `below`: something was written where the place was away.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import psutil
import torch

from infrastructure.backup.backends.drive import ID_ATTRIBUTE
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier_process import RECORD_FILE
from infrastructure.commands.train import exit_code_of_training
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import CopyNotConfirmedError, TemperError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import file_sha256, paths_below, write_json
from infrastructure.deployment import deploy_training
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.monitoring.drawing.metrics_file import read_metrics
from tests.conftest import save_tiny_llama
from tests.faults.judge import print_figures
from tests.faults.kill_storm import in_child
from tests.faults.run_storm import SMALL_MODEL, write_data
from tests.forks import import_what_takes_long

DEATHS = ("process", "helpers", "copier", "machine", "place")
WEIGHTS = (3, 3, 2, 3, 2)
KILLS_PER_RUN = 4
WAIT_SECONDS, AWAY_SECONDS = 120.0, 2.0  # for the copy; where the place is away
MOST_ATTEMPTS = 4
PLUGIN = Path(__file__).parent / "store_plugin"
SMALL: dict[str, Any] = {
    **SMALL_MODEL,
    "training.batch_size": 2,
    "training.max_steps": 6,
    "training.checkpoint_frequency": 1,
    "training.validation_frequency": 3,
    "training.validation_prompts": 0,
    "training.metrics_sinks": ["jsonl"],
    "data.validation_split": 0.1,
    "data.max_length": 64,
    "backup.megabytes_per_second": 2.0,  # so that a copy takes its time
    "log_level": "ERROR",
}
LLAMA = {"model.name": "{shared}/llama", "model.lora_config": True}
QUANTUM = {
    "training.enabled_extensions": ["quantum"],
    "training.optimization_frequency": 2,
    "quantum.max_overhead_percent": 1e6,
    "quantum.timeout": 5,
    "quantum.max_qubits": 8,
}
# What is trained, and where it is copied to.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": LLAMA,
    "4bit": {**LLAMA, "model.quantization": "4bit"},
    "8-bit optimizer": {"training.optimizer": "adamw_8bit"},
    "unpacked": {"data.packing": False, "training.gradient_accumulation": 2},
    "streaming": {"data.streaming": True},
    "quantum": QUANTUM,
    "bf16": {"training.mixed_precision": "bf16"},
    "compressed": {"backup.compression": "zstd"},
    "uncompressed": {"backup.compression": "off", "training.optimizer": "sgd"},
    "drive": {"backup.place": "drive:{place}"},
    "fsspec": {"backup.place": "temperstore://{place}"},
    "trainer": {},
    "trainer on fsspec": {"backup.place": "temperstore://{place}"},
    "cold start": {},
    "detached": {},
}
COLD = ("cold start", "detached")  # in processes that import everything anew
TRAINERS = ("trainer", "trainer on fsspec")
UNSLOTH = "unsloth"  # alone in its process, since it changes what it finds there
ALONE = {UNSLOTH: {**LLAMA, "model.backend": "unsloth"}}


@dataclass
class Outcome:
    """Counts over a whole storm."""

    kills: int = 0
    deaths: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEATHS, 0))
    at_the_end: int = 0  # of the kills, after the training had said that it is finished
    by_configuration: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    lost: int = 0
    damaged: int = 0
    differing: int = 0
    failed: int = 0
    below: int = 0


@dataclass
class Run:
    """One run in `directory`, and the command that it is given again and again."""

    name: str
    directory: Path
    shared: Path

    @property
    def place(self) -> Path:
        return self.directory / "place"

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def settings(self, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        own = {**CONFIGURATIONS, **ALONE}[self.name]
        values = {
            **SMALL,
            "data.path": str(self.shared / "data.jsonl"),
            "cache.directory": str(self.shared / "cache"),
            "output_dir": str(self.runs),
            "backup.place": str(self.place),
            "backup.finish_seconds": seconds,
            **own,
        }
        if "model.name" in own:
            values = {k: v for k, v in values.items() if not k.startswith("model.embedded")}
        known = {"{place}": str(self.place), "{shared}": str(self.shared)}
        return {key: _filled(value, known) for key, value in values.items()}

    def start(self, seconds: float = WAIT_SECONDS) -> int:
        """Give the command; the number of its process."""
        if self.name in COLD:
            return self._start_cold(seconds)
        command = self._train_own if self.name in TRAINERS else self._train
        return in_child(lambda: os._exit(command(seconds)))

    def _train(self, seconds: float) -> int:
        with self.log.open("a") as log, contextlib.redirect_stderr(log):
            try:
                config = DeploymentConfig(**self.settings(seconds))
                training = TrainingDeployment(config, say=lambda line: _note(log, line))
                return exit_code_of_training(training.run())
            except (ValueError, TemperError) as error:  # as the command says it
                _note(log, f"temper: {error}")
                return ExitCode.WRONG_INPUT

    def _train_own(self, seconds: float) -> int:
        from tests.training.hf_bridge.tiny_trainer import settings, train, weights

        backup = {"finish_seconds": seconds, "emergency_seconds": seconds}
        place = self.settings()["backup.place"]
        with self.log.open("a") as log, contextlib.redirect_stderr(log):
            options = {"place": place, "megabytes_per_second": 2.0, **backup}
            config = settings(self.directory, backup=options)
            try:
                trainer, _, lines = train(self.directory, config=config, max_steps=6)
            except CopyNotConfirmedError as error:
                _note(log, str(error))
                return int(error.code or 0)
            except (ValueError, TemperError) as error:
                _note(log, f"temper: {error}")
                return ExitCode.WRONG_INPUT
            _note(log, "\n".join(lines))
            torch.save(weights(trainer.model), self.directory / "weights.pt")
        return ExitCode.DONE

    def _start_cold(self, seconds: float) -> int:
        file = self.directory / "config.json"
        file.write_text(json.dumps(_nested(self.settings(seconds))))  # JSON is YAML
        detach = ["--detach"] if self.name == "detached" else []
        program = "import sys; from tests.faults.end_storm import to_its_end; to_its_end()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, PLUGIN)))}
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(file), *detach],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.directory,
            )
        _STARTED.append(process)
        return process.pid

    def run_path(self) -> Path | None:
        """The directory of the run; None: there is none yet."""
        found = sorted(self.runs.glob("*/run.json"))
        return found[-1].parent if found else None

    def knows_its_place(self) -> bool:
        """Whether it has been at its place: from then on it takes no other for it."""
        path = self.run_path()
        return path is not None and (path / "checkpoints" / RECORD_FILE).is_file()

    def is_finished(self) -> bool:
        """Whether the run has written that it is."""
        path = self.run_path()
        try:
            record = json.loads((path / "summary.json").read_text()) if path else {}
        except (OSError, ValueError):
            return False
        return record.get("status") == "finished"


ROOT = Path(__file__).resolve().parents[2]
_STARTED: list["subprocess.Popen[bytes]"] = []  # kept, or a child would be reported as forgotten


def to_its_end() -> None:
    """The command of a person who waits for a detached training; the exit code of either."""
    from infrastructure.commands import main as cli
    from infrastructure.deployment import detached

    file, *detach = sys.argv[1:]
    code = cli.main(["train", "--config", file, *detach])
    if not detach or code != ExitCode.DONE:
        raise SystemExit(code)
    record = json.loads(Path(file).read_text())
    while True:
        runs = Path(record["output_dir"]).glob("*/trained_by")
        holders = [detached.read_trainer(one.parent) for one in runs]
        if not any(holder is not None and holder.is_alive for holder in holders):
            break
        time.sleep(0.1)
    raise SystemExit(cli.main(["train", "--config", file]))  # which says whether it is confirmed


def _nested(settings: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return nested


def _filled(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, str):
        for word, text in known.items():
            value = value.replace(word, text)
    return value


def _note(log: Any, line: str) -> None:
    print(line, file=log, flush=True)


class DriveFs(threading.Thread):
    """Gives the files of a folder the ids that DriveFS gives to what it has uploaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self._is_over = folder, threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            for path in [self.folder, *paths_below(self.folder)]:
                with contextlib.suppress(OSError):
                    is_old = time.time() - path.stat().st_mtime > 0.1
                    if is_old or path.is_dir():
                        os.setxattr(path, ID_ATTRIBUTE, b"1uploaded", os.XATTR_CREATE)

    def end(self) -> None:
        self._is_over.set()
        self.join()


@contextlib.contextmanager
def driven(run: Run) -> Iterator[None]:
    """Inside, a Drive lies behind the place, where it is one."""
    if run.name != "drive":
        yield
        return
    drive = DriveFs(run.place)
    drive.start()
    try:
        yield
    finally:
        drive.end()


@dataclass
class Measured:
    """An undisturbed run: its model and losses, how long it takes, and how long its end."""

    sums: dict[str, str]
    losses: list[tuple[int, float]]
    seconds: float
    end_seconds: float


def measured(run: Run) -> Measured:
    """Run it undisturbed."""
    run.directory.mkdir(parents=True)
    run.place.mkdir()
    started = time.monotonic()
    finished_at: float | None = None
    with driven(run):
        child = run.start()
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if finished_at is None and run.is_finished():
                finished_at = time.monotonic()
            time.sleep(0.02)
    ended_at = time.monotonic()
    losses = losses_of(run)
    sums = sums_at_place(run)
    assert sums is not None, f"{run.name} is not at its place: {run.log.read_text()[-3000:]}"
    return Measured(sums, losses, ended_at - started, ended_at - (finished_at or ended_at))


def sums_at_place(run: Run) -> dict[str, str] | None:
    """The files of the newest whole `final/` that the place holds, each compared with its sum."""
    whole = None
    for folder in sorted(run.place.glob("*/final*")):
        if not (folder / "SHA256SUMS").is_file():
            continue
        lines = (folder / "SHA256SUMS").read_text().splitlines()
        sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        if all((folder / n).is_file() and file_sha256(folder / n) == d for n, d in sums.items()):
            whole = sums
    return whole


def losses_of(run: Run) -> list[tuple[int, float]]:
    path = run.run_path()
    records = read_metrics(path / "metrics.jsonl") if path else []
    return [(r["step"], r["loss"]) for r in records if "loss" in r and "kind" not in r]


@dataclass
class Storm:
    """Kills runs of all configurations, one after the other."""

    directory: Path
    names: list[str]
    seed: int
    outcome: Outcome = field(default_factory=Outcome)
    references: dict[str, Measured] = field(default_factory=dict)
    number: int = 0

    @property
    def state_file(self) -> Path:
        return self.directory / "state.json"

    def load(self) -> None:
        """Go on with what an earlier process has done."""
        if self.state_file.is_file():
            record = json.loads(self.state_file.read_text())
            self.outcome, self.number = Outcome(**record["outcome"]), record["number"]

    def save(self) -> None:
        write_json(self.state_file, {"outcome": asdict(self.outcome), "number": self.number})

    def go_on(self, num_kills: int) -> None:
        """Kill until there are `num_kills`."""
        while self.outcome.kills < num_kills and self.outcome.failed < 3:
            self.number += 1
            draw = random.Random(f"{self.seed} {self.number}")
            name = self.names[self.number % len(self.names)]
            self.disturb(name, draw)
            self.save()

    def reference(self, name: str) -> Measured:
        if name not in self.references:
            folder = self.directory / "references" / name.replace(" ", "-")
            shutil.rmtree(folder, ignore_errors=True)
            self.references[name] = measured(Run(name, folder, self.directory))
        return self.references[name]

    def disturb(self, name: str, draw: random.Random) -> None:
        """One run, killed again and again, then led to its end, and given back by its place."""
        expected = self.reference(name)
        folder = self.directory / f"disturbed-{self.number}"
        shutil.rmtree(folder, ignore_errors=True)
        run = Run(name, folder, self.directory)
        run.directory.mkdir()
        run.place.mkdir()
        before = self.outcome.failed + self.outcome.differing + self.outcome.lost
        with driven(run):
            self._kill(run, expected, draw)
            self._lead_to_its_end(run)
            self._compare(run, expected)
            self._give_back(run, expected)
        end_all(run)
        self.outcome.runs += 1
        if self.outcome.failed + self.outcome.differing + self.outcome.lost == before:
            shutil.rmtree(folder)
        else:
            print(f"{folder} is kept: {run.log.read_text()[-4000:]}", file=sys.stderr)

    def _kill(self, run: Run, expected: Measured, draw: random.Random) -> None:
        committed = confirmed = 0
        for _ in range(KILLS_PER_RUN):
            [death] = draw.choices(DEATHS, WEIGHTS)
            if death == "place":
                self._away(run)
                continue
            child = run.start()
            is_over = wait_for_instant(run, child, expected, draw)
            if is_over is not None:
                self._count(is_over, (ExitCode.DONE,), run)
                return
            is_at_end = run.is_finished()
            helpers = children_of(child, run)
            if death == "copier" and not kill_copiers(run):
                death = "process"
            if death != "copier":
                kill(child, helpers if death != "process" else [])
            _, status = os.waitpid(child, 0)
            if death == "copier":  # the training itself goes on to its end
                self._count(status, (ExitCode.DONE,), run)
            self._note_death(death, is_at_end, run)
            if death == "machine":
                end_all(run)
                shutil.rmtree(run.runs, ignore_errors=True)
                committed = 0
            committed = self._look(run.runs, "*/checkpoints", committed)
            confirmed = self._look(run.place, "*", confirmed)

    def _note_death(self, death: str, is_at_end: bool, run: Run) -> None:
        self.outcome.kills += 1
        self.outcome.deaths[death] += 1
        self.outcome.at_the_end += is_at_end
        counts = self.outcome.by_configuration
        counts[run.name] = counts.get(run.name, 0) + 1

    def _away(self, run: Run) -> None:
        """The place is away as long as this attempt takes: nothing may be written below it."""
        is_finished, was_known = run.is_finished(), run.knows_its_place()
        away = run.place.rename(run.directory / "away")
        run.place.mkdir()
        _, status = os.waitpid(run.start(AWAY_SECONDS), 0)
        end_all(run)
        left = [path.name for path in run.place.iterdir()]
        if was_known:
            self.outcome.below += bool(left)
            self._count(
                status, (ExitCode.NOT_CONFIRMED,) if is_finished else (ExitCode.WRONG_INPUT,), run
            )
        shutil.rmtree(run.place)  # a run that never was there before marks whatever it finds
        away.rename(run.place)
        if not was_known:
            shutil.rmtree(run.runs, ignore_errors=True)
        self._note_death("place", is_finished, run)

    def _count(self, status: int, right: tuple[int, ...], run: Run) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code not in right:
            self.outcome.failed += 1
            print(f"{run.name}: exit code {code} instead of {right}", file=sys.stderr)

    def _look(self, folder: Path, pattern: str, newest_before: int) -> int:
        """The newest step that a whole version holds; one that was there before must still be."""
        newest = 0
        for root in folder.glob(pattern):
            store = Store(root)
            name, rejected = store.newest()
            self.outcome.damaged += len(rejected)
            newest = max(newest, store.read(name).step if name else 0)
        self.outcome.lost += newest < newest_before
        return max(newest, newest_before)

    def _lead_to_its_end(self, run: Run) -> None:
        """The same command until it ends in order; what was finished says so at once."""
        for _ in range(MOST_ATTEMPTS):
            _, status = os.waitpid(run.start(), 0)
            code = os.waitstatus_to_exitcode(status)
            if code == ExitCode.DONE:
                return
            if code == ExitCode.WRONG_INPUT and run.name == "detached" and processes_of(run):
                psutil.wait_procs(processes_of(run), timeout=WAIT_SECONDS)  # it trains, and says so
                continue
            print(f"{run.name}: exit code {code} of an undisturbed command", file=sys.stderr)
            self.outcome.failed += 1
        end_all(run)

    def _compare(self, run: Run, expected: Measured) -> None:
        is_same = sums_at_place(run) == expected.sums and losses_of(run) == expected.losses
        if not is_same:
            self.outcome.differing += 1
            print(f"{run.name}: another end: {sums_at_place(run)}", file=sys.stderr)

    def _give_back(self, run: Run, expected: Measured) -> None:
        """The machine is gone; the place alone gives the finished model back."""
        end_all(run)
        shutil.rmtree(run.runs)
        _, status = os.waitpid(run.start(), 0)
        self._count(status, (ExitCode.DONE,), run)
        path = run.run_path()
        here = (
            {
                file.relative_to(path / "final").as_posix(): file_sha256(file)
                for file in (path / "final").rglob("*")
                if file.is_file() and file.name != "SHA256SUMS"
            }
            if path
            else {}
        )
        is_same = here == expected.sums and sums_at_place(run) == expected.sums
        if not is_same:
            self.outcome.differing += 1
            print(f"{run.name}: the place gives back another model: {here}", file=sys.stderr)


def wait_for_instant(run: Run, child: int, expected: Measured, draw: random.Random) -> int | None:
    """Let a training go on until it is to die; its exit status where it has ended before."""
    until_end = draw.random() < 0.5 and not run.is_finished()
    longest = expected.seconds if not run.is_finished() else expected.end_seconds + 1.0
    deadline = time.monotonic() + (3 * longest if until_end else draw.uniform(0, longest))
    while time.monotonic() < deadline:
        if until_end and run.is_finished():
            until_end = False
            deadline = time.monotonic() + draw.uniform(0, expected.end_seconds)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.01)
    pid, status = os.waitpid(child, os.WNOHANG)
    return status if pid else None


def children_of(child: int, run: Run) -> list[psutil.Process]:
    """All processes of a training."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [*psutil.Process(child).children(recursive=True), *processes_of(run)]
    return processes_of(run)


def processes_of(run: Run) -> list[psutil.Process]:
    """Everything that works in the directory of a run, however it was started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            files = [file.path for file in process.open_files()]
            is_ours = process.pid != os.getpid() and "python" in process.name()
            if is_ours and any(path.startswith(f"{run.directory}/") for path in files):
                found.append(process)
    return found


def kill(child: int, helpers: list[psutil.Process]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    for helper in helpers:
        with contextlib.suppress(psutil.NoSuchProcess):
            helper.kill()


def kill_copiers(run: Run) -> bool:
    """Kill what copies this run; whether there was anything."""
    was_there = False
    for process in processes_of(run):
        with contextlib.suppress(psutil.Error):
            if any("copier_process" in part for part in process.cmdline()):
                process.kill()
                was_there = True
    return was_there


def end_all(run: Run) -> None:
    """No process works in the directory of the run any more."""
    for _ in range(100):
        left = processes_of(run)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=10)


def _does_not_complete(run: Any, copies: Any, seconds: float) -> dict[str, Any]:
    """Mutant: what is finished here counts as finished."""
    summary: dict[str, Any] = json.loads(run.summary_file.read_text())
    summary.pop("checksum", None)
    return summary


def _plant(name: str) -> None:
    if name == "not completed":
        # unlike an assignment, this fails where the name is gone
        mock.patch.object(deploy_training, "complete_finished", _does_not_complete).start()
    if name == "says confirmed":
        deploy_training.RunReplication.complete = (  # type: ignore[method-assign]
            lambda self, seconds, record: record()
        )


MUTANTS = ("not completed", "says confirmed")


def prepare(directory: Path, with_unsloth: bool) -> None:
    """What all runs share, and what their processes would import."""
    torch.set_num_threads(1)
    if with_unsloth:
        importlib.import_module("unsloth")
    import_what_takes_long()
    sys.path.insert(0, str(PLUGIN))  # the helpers look there, too
    fsspec.register_implementation("temperstore", "temperstore.TemperStore")
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "data.jsonl").exists():
        write_data(directory / "data.jsonl")
    if not (directory / "llama").exists():
        save_tiny_llama(directory / "llama")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="configurations, with commas between")
    parser.add_argument("--mutant", choices=MUTANTS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CONFIGURATIONS)
    prepare(options.directory.resolve(), UNSLOTH in names)
    storm = Storm(options.directory.resolve(), names, options.seed)
    storm.load()
    if options.mutant:
        for name in names:  # what they are compared with is without the defect
            storm.reference(name)
        _plant(options.mutant)
    started = time.monotonic()
    storm.go_on(options.kills)
    seconds = round(time.monotonic() - started, 1)
    print_figures("G1 end", {**asdict(storm.outcome), "seconds": seconds})


if __name__ == "__main__":
    main()
