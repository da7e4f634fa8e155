"""G1 on several processes: any rank, the agent, or all of them are killed at random instants.

    python -m tests.faults.rank_storm DIRECTORY [--kills 60] [--mutant NAME]

The real command, with two processes: `temper train --num-processes 2`; its agent and ranks are
forks of this process, which has imported what takes long. What the agent starts again is killed
again; where the agent dies, the same command is given again, as a person would. Now and then the
rest is trained by another number of processes. Prints one JSON line. `lost`: committed
versions that were gone after a kill; `damaged`: versions there and not whole; `differing`: runs
that came to an end with other weights or losses than the undisturbed one (of another number of
processes: with another loss by more than sums that are rounded otherwise explain).
"""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from infrastructure.backup.format.store import Store
from infrastructure.commands.main import main as main_of_command
from infrastructure.core.exit_codes import ExitCode
from tests.faults import run_storm
from tests.faults.run_storm import look, print_storm, result_of, write_data
from tests.forks import import_what_takes_long

DEATHS = ("rank 0", "another rank", "agent", "all")
OTHER_NUMBERS = (1, 3)
NUM_PROCESSES = 2
MOST_KILLS_OF_A_RUN = 6
SHARE_ANYWHERE = 0.2  # of the kills: also while model and data are loaded
LONGEST_SECONDS = 240.0  # of whatever is waited for
GONE_SECONDS = 120.0  # until who is left of a killed training has ended by itself
# What the held-out loss may differ by after sums that were rounded otherwise (bf16 is not used).
ROUNDING = 1e-3
SETTINGS: dict[str, Any] = {
    "model": {
        "embedded": {
            **{"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 2},
            **{"vocab_size": 300, "max_positions": 64},
        }
    },
    "data": {"path": "rows.jsonl", "max_length": 64, "num_workers": 0, "validation_split": 0.1},
    "training": {
        **{"batch_size": 2, "gradient_accumulation": 2, "max_steps": 120, "warmup_steps": 1},
        **{"checkpoint_frequency": 2, "validation_frequency": 20, "validation_prompts": 0},
        **{"metrics_sinks": ["jsonl"], "mixed_precision": False},
    },
    "cache": {"directory": "cache"},
    "enable_testing": False,
    "device": "cpu",
}


@dataclass
class Outcome(run_storm.Outcome):
    """Counts over a whole storm."""

    deaths: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEATHS, 0))
    restarts: int = 0  # by the agent
    other_numbers: int = 0  # runs that another number of processes has ended


class Fork:
    """The command in a fork; used as a `subprocess.Popen`, also by torch's agent for its ranks."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        stdout: Path | None,
        stderr: Path | None,
        folder: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be(words, environment, (stdout, stderr), folder)

    @classmethod
    def of_rank(cls, args: Sequence[str], env: Mapping[str, str], **streams: Any) -> "Fork":
        """As torch's agent starts a rank: `python … infrastructure WORD…`."""
        words = args[list(args).index("infrastructure") + 1 :]
        files = [streams[name] and Path(streams[name].name) for name in ("stdout", "stderr")]
        return cls(words, env, *files)

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (LONGEST_SECONDS if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or LONGEST_SECONDS)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode


def _be(
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[Path | None],
    folder: Path | None,
) -> NoReturn:
    """Be the agent, or one of its ranks, and end."""
    code = 1
    try:
        os.setsid()
        for number, path in enumerate(streams, start=1):
            if path is not None:
                with path.open("ab") as file:
                    os.dup2(file.fileno(), number)
        os.closerange(3, 1024)  # the agent's store listens in the agent alone
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(environment)
        if folder is not None:
            os.chdir(folder)
        if rank := os.environ.get("RANK"):
            Path(f"pid.{rank}").write_text(str(os.getpid()))
        subprocess_handler.Popen = Fork.of_rank  # type: ignore[assignment]
        sys.argv[1:] = words
        code = main_of_command(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Training:
    """The command in a folder of its own, given again when it has died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: Fork | None = None
        self.num_given = 0
        folder.mkdir(parents=True)
        write_data(folder / "rows.jsonl")
        (folder / ".config").mkdir()
        # JSON is YAML
        (folder / ".config/training_config.yaml").write_text(json.dumps(SETTINGS))

    def give_command(self, num_processes: int = NUM_PROCESSES) -> None:
        words = ["train", "--num-processes", str(num_processes)]
        self.num_given += 1
        output = self.folder / f"output-{self.num_given}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = Fork(words, environment, output, output, self.folder)

    @property
    def exit_code(self) -> int | None:
        """Of the command that runs; None where it lives."""
        assert self.process is not None
        return self.process.poll()

    def ranks(self) -> dict[int, psutil.Process]:
        """The living ones."""
        assert self.process is not None
        living = {}
        with suppress(psutil.Error):
            living = {child.pid: child for child in psutil.Process(self.process.pid).children()}
        pids = {int(path.suffix[1:]): path.read_text() for path in self.folder.glob("pid.*")}
        return {rank: living[int(pid)] for rank, pid in pids.items() if pid and int(pid) in living}

    def everybody(self) -> list[psutil.Process]:
        """The agent, its ranks and their helpers."""
        assert self.process is not None
        with suppress(psutil.Error):
            agent = psutil.Process(self.process.pid)
            return [agent, *agent.children(recursive=True)]
        return []

    def output(self) -> str:
        files = sorted(self.folder.glob("output-*"), key=lambda path: path.stat().st_mtime)
        return "".join(path.read_text(errors="replace") for path in files)

    def num_versions(self) -> int:
        """How often it has saved, also what was removed since."""
        names = [path.name for path in self.folder.glob("runs/*/checkpoints/versions/*.json")]
        return max((int(name.split("-")[0]) for name in names), default=0)

    def newest_step(self) -> int:
        """Of the newest committed version; what it names is not read."""
        stores = [Store(root) for root in self.folder.glob("runs/*/checkpoints")]
        newest = [(store, names[0]) for store in stores if (names := store.versions())]
        return max((store.outline(name).step for store, name in newest), default=0)

    @contextmanager
    def ended_with_all(self) -> Iterator[None]:
        """Inside, somebody is killed; afterwards nobody is left of who was there."""
        before = self.everybody()
        yield
        left = psutil.wait_procs(before, GONE_SECONDS)[1]
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        assert not left, f"still there after {GONE_SECONDS:.0f} s: {left}"


def storm(directory: Path, num_kills: int, seed: int) -> Outcome:
    """Kill until `num_kills` are reached and the last run is through."""
    import_what_takes_long()
    outcome, draw, number = Outcome(), random.Random(seed), 0
    reference = Training(directory / "reference")
    began = time.monotonic()
    train_to_the_end(reference, outcome)
    assert not outcome.failed, reference.output()[-3000:]
    print(f"undisturbed: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    while outcome.kills < num_kills and outcome.failed < 3:
        number += 1
        disturbed = Training(directory / f"disturbed-{number}")
        most = min(MOST_KILLS_OF_A_RUN, num_kills - outcome.kills)
        kill_now_and_then(disturbed, most, draw, outcome)
        is_other = number % 3 == 0
        if is_other and disturbed.exit_code is None:
            with disturbed.ended_with_all():
                kill("all", disturbed, draw, outcome)
        others = OTHER_NUMBERS[number // 3 % 2] if is_other else NUM_PROCESSES
        train_to_the_end(disturbed, outcome, others)
        compare(reference, disturbed, others, outcome)
        outcome.restarts += disturbed.output().count("(restart ")
        print(json.dumps(asdict(outcome)), file=sys.stderr, flush=True)
        if not outcome.failed + outcome.differing + outcome.lost + outcome.damaged:
            shutil.rmtree(disturbed.folder)
    return outcome


def kill_now_and_then(
    training: Training, num_kills: int, draw: random.Random, outcome: Outcome
) -> None:
    """Until it is through, or so often."""
    newest = 0
    training.give_command()
    for _ in range(num_kills):
        if not is_there_to_be_killed(training, draw):
            break
        death = draw.choice(DEATHS)
        newest = max(newest, training.newest_step())
        if death in ("agent", "all"):
            with training.ended_with_all():
                kill(death, training, draw, outcome)
        else:
            kill(death, training, draw, outcome)
        newest = look(training.folder, "runs/*/checkpoints", newest, outcome)
        if death in ("agent", "all"):
            training.give_command()


def is_there_to_be_killed(training: Training, draw: random.Random) -> bool:
    """Wait for a random instant; False where the training is through, or has failed."""
    deadline = time.monotonic() + LONGEST_SECONDS
    if draw.random() > SHARE_ANYWHERE:  # while it trains
        seen = training.num_versions()
        while training.num_versions() == seen and time.monotonic() < deadline:
            if training.exit_code not in (None, ExitCode.PROCESS_LOST):
                return False
            if training.exit_code is not None:
                training.give_command()
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 2))
    else:
        time.sleep(draw.uniform(0, 6))
    return training.exit_code is None and time.monotonic() < deadline


def kill(death: str, training: Training, draw: random.Random, outcome: Outcome) -> None:
    """SIGKILL; nothing where nobody of that kind lives now."""
    ranks = training.ranks()
    assert training.process is not None
    doomed = {
        "rank 0": [ranks.get(0)],
        "another rank": [draw.choice([r for n, r in ranks.items() if n] or [None])],
        "agent": [psutil.Process(training.process.pid)] if training.exit_code is None else [],
        "all": training.everybody(),
    }[death]
    num_killed = 0
    for process in doomed:
        with suppress(psutil.Error):
            if process is not None:
                process.kill()
                num_killed += 1
    if death in ("agent", "all"):
        training.process.wait()
    if num_killed:
        outcome.kills += 1
        outcome.deaths[death] += 1


def train_to_the_end(
    training: Training, outcome: Outcome, num_processes: int = NUM_PROCESSES
) -> None:
    """Give the command until it is through; one that runs is waited for."""
    if training.process is None or training.exit_code not in (None, 0):
        training.give_command(num_processes)
    assert training.process is not None
    if training.process.wait(LONGEST_SECONDS) == ExitCode.PROCESS_LOST:
        training.give_command(num_processes)
        training.process.wait(LONGEST_SECONDS)
    if training.exit_code != 0:
        outcome.failed += 1
        print(training.output()[-3000:], file=sys.stderr, flush=True)


def compare(reference: Training, disturbed: Training, num_processes: int, outcome: Outcome) -> None:
    if disturbed.exit_code != 0:
        return  # which counts as failed
    outcome.finished += 1
    was, now = result_of(reference.folder), result_of(disturbed.folder)
    if num_processes == NUM_PROCESSES:
        outcome.differing += was != now
        return
    outcome.other_numbers += 1
    steps = [[step for step, _ in losses] for _, losses in (was, now)]
    last = [losses[-1][1] for _, losses in (was, now)]
    outcome.differing += steps[0] != steps[1] or abs(last[0] - last[1]) > ROUNDING


def _loses_the_newest_version() -> None:
    """Each kill takes the newest manifest with it."""
    kill_only = kill

    def kill_and_lose(death: str, training: Training, *others: Any) -> None:
        kill_only(death, training, *others)
        manifests = sorted(training.folder.glob("runs/*/checkpoints/versions/*.json"))
        if manifests:
            manifests[-1].unlink(missing_ok=True)

    globals()["kill"] = kill_and_lose


def _moments_are_not_restored(rank: str) -> None:
    """The optimizer of one rank goes on as a new one does."""
    load = torch.optim.Optimizer.load_state_dict

    def forgetful(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
        if os.environ.get("RANK") == rank:
            saved = {**saved, "state": {}}
        load(optimizer, saved)

    torch.optim.Optimizer.load_state_dict = forgetful  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "lost_versions": _loses_the_newest_version,
    "no_moments_on_rank_0": partial(_moments_are_not_restored, "0"),
    "no_moments_on_rank_1": partial(_moments_are_not_restored, "1"),
}


if __name__ == "__main__":
    print_storm("G1 ranks", str(__doc__), MUTANTS, storm)
