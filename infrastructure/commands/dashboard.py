"""`temper dashboard`: follow runs on a web page. Loads no torch: looking costs little."""

import argparse
import json
import os
from pathlib import Path

from infrastructure.commands.arguments import add_folder_flags, add_run
from infrastructure.commands.settings import configure
from infrastructure.commands.watch import NICENESS
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.dashboard.server import Dashboard
from infrastructure.monitoring.records.run_list import find_run_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_run(parser, phrase("commands.run_default_always_newest"))
    parser.add_argument("--host", default="127.0.0.1", help=phrase("commands.where_listen_default"))
    parser.add_argument("--port", type=int, default=8765, help=phrase("commands.any_free_default"))
    parser.add_argument(
        "--json", action="store_true", help=phrase("commands.tell_address_json_object")
    )
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    output_dir = Path(configure(options).output_dir)
    path = None if options.run is None else find_run_path(options.run, output_dir)
    server = Dashboard(output_dir, path, options.host, options.port)
    os.nice(NICENESS)
    try:
        _show_address(server, options.json)
        server.serve()
    except KeyboardInterrupt:
        return ExitCode.DONE
    finally:
        server.close()
    return ExitCode.DONE


def _show_address(server: Dashboard, as_json: bool) -> None:
    """Where the page is. The token has to be shown: it is what opens the page."""
    if as_json:
        address = {"url": server.url, "port": server.port, "path": server.path}
        print(json.dumps(address), flush=True)
        return
    print(phrase("commands.dashboard", url=server.url))
    if server.is_local:
        print(phrase("commands.through_proxy_such_notebook", server=server.path))
    else:
        print(phrase("commands.who_address_token_sees"))
    print(phrase("commands.ctrl_c_ends_trainings_go"), flush=True)
