"""`temper dashboard`: follow runs on a web page. It does not load torch."""

import argparse
import json
import os
from pathlib import Path

from infrastructure.commands.arguments import add_folder_flags, add_run
from infrastructure.commands.settings import configure
from infrastructure.commands.watch import NICENESS
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.features.dashboard.server import DEFAULT_PORT, Dashboard
from infrastructure.monitoring.records.run_list import find_run_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser, "dashboard.help_run")
    parser.add_argument("--host", default="127.0.0.1", help=phrase("dashboard.help_host"))
    port = phrase("dashboard.help_port")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=port)
    parser.add_argument("--json", action="store_true", help=phrase("dashboard.help_json"))
    add_folder_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the web page until Ctrl-C."""
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
    """Show the address of the web page, which includes the access token."""
    if as_json:
        address = {"url": server.url, "port": server.port, "path": server.path}
        print(json.dumps(address), flush=True)
        return
    print(phrase("dashboard.address", url=server.url))
    if server.is_local:
        print(phrase("dashboard.path_behind_proxy", path=server.path))
    else:
        print(phrase("dashboard.needs_token"))
    print(phrase("dashboard.stops_with_ctrl_c"), flush=True)
