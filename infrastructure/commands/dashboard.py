"""`temper watch` and `temper dashboard`. Loads no torch: who looks on costs the training little."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from infrastructure.monitoring.dashboard.server import Dashboard
from infrastructure.monitoring.records.run_list import find_run_path
from infrastructure.monitoring.watch import watch as watch_run

DONE, FAILED = 0, 1
NICENESS = 10  # whoever trains on this machine comes first


@dataclass(frozen=True)
class DashboardWish:
    """What `temper dashboard` was given; `run` None: always the newest."""

    run: str | None
    output_dir: Path
    host: str
    port: int
    as_json: bool = False


def watch(run: str | None, output_dir: Path, is_once: bool, interval_seconds: float) -> int:
    """Show a run until it ends; 1 where it failed.

    Raises:
        ValueError: there is no such run.
    """
    os.nice(NICENESS)
    state = watch_run(find_run_path(run, output_dir), is_once, interval_seconds)
    return FAILED if state == "failed" else DONE


def dashboard(wish: DashboardWish) -> int:
    """Serve the live page until Ctrl-C.

    Raises:
        ValueError: there is no such run, or the address cannot be listened on.
    """
    path = None if wish.run is None else find_run_path(wish.run, wish.output_dir)
    server = Dashboard(wish.output_dir, path, wish.host, wish.port)
    os.nice(NICENESS)
    try:
        _tell(server, wish.as_json)
        server.serve()
    except KeyboardInterrupt:
        return DONE
    finally:
        server.close()
    return DONE


def _tell(server: Dashboard, as_json: bool) -> None:
    """Where the page is. The token has to be told: it is what opens the page."""
    if as_json:
        told = {"url": server.url, "port": server.port, "path": server.path}
        print(json.dumps(told), flush=True)
        return
    print(f"The dashboard is at {server.url}")
    if server.is_local:
        print(f"Through a proxy, such as a notebook's, its path is {server.path}")
    else:
        print("Only who has this address, with its token, sees anything")
    print("Ctrl-C ends it; the trainings go on", flush=True)
