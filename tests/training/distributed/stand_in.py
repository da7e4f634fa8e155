"""A rank that needs no torch, for tests of the agent: `stand_in.py FOLDER WORD…`.

Each word is `RANK@ATTEMPT:DEED`; what a rank has no word for, it does well. Rank 0 does as the
command does: it tells the agent of its run and its end. The others do nothing before it has.
"""

import os
import signal
import sys
import time
from pathlib import Path

from infrastructure.core.agent import agent_folder, end_with_agent, left_to_agent
from infrastructure.core.exit_codes import ExitCode, exit_code_of_signal
from infrastructure.core.files import write_text

PATIENCE_SECONDS = 120.0
STOPPED = "Stopped at step 1"


def main() -> int:
    folder = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    attempt = len([*folder.glob(f"rank-{rank}@*")])
    end_with_agent()
    deeds = dict(word.split(":") for word in sys.argv[2:])
    write_text(folder / f"rank-{rank}@{attempt}", str(os.getpid()))
    agent, ready = agent_folder(), folder / f"ready@{attempt}"
    if agent is None:
        _wait_for(ready)
    else:
        run = folder / "run-of-test"
        (run / "logs").mkdir(parents=True, exist_ok=True)
        agent.note_run(run, "")
        _wait_for(folder / f"rank-1@{attempt}")
    code = _do(deeds.get(f"{rank}@{attempt}", "end"), folder, ready)
    if agent is not None:
        agent.note_exit_code(code)
    return code


def _do(deed: str, folder: Path, ready: Path) -> int:
    name, _, argument = deed.partition("=")
    if name in ("wait", "lose"):  # until it is asked to end, and then as where others are lost
        code = _until_signalled(folder, ready)
        return ExitCode.PROCESS_LOST if code and name == "lose" else code
    write_text(ready, "")
    if name == "exit":
        print(f"temper: ends with {argument}", file=sys.stderr)
        agent = agent_folder()
        if agent is not None and int(argument) == ExitCode.PROCESS_LOST:
            agent.note_loss("rank 1 does not answer")
        return int(argument)
    if name == "kill":
        os.kill(os.getpid(), int(argument))
    if name == "stop":  # nobody lets it go on
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "hang":
        time.sleep(PATIENCE_SECONDS)
    return ExitCode.DONE


def _until_signalled(folder: Path, ready: Path) -> int:
    got: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: got.append(number))
    write_text(ready, "")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not got and time.monotonic() < deadline:
        time.sleep(0.01)
    write_text(folder / "asked", "")
    time.sleep(0.3)  # a second one would come, too
    with (folder / "signals").open("a") as file:
        file.write("".join(f"{signal.Signals(number).name}\n" for number in got))
    if not got:
        return ExitCode.DONE
    name = signal.Signals(got[0]).name
    left_to_agent([STOPPED], name)
    return exit_code_of_signal(name)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
