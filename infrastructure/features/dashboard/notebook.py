"""The dashboard in the output of a notebook's cell, on Colab and elsewhere."""

import importlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from colab.runtime import Platform, platform
from infrastructure.core.errors import InputError
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require

HEIGHT_PIXELS = 720


def show_dashboard(
    run: str | None = None, output_dir: str | Path = "runs", height_pixels: int = HEIGHT_PIXELS
) -> HelperProcess:
    """Start `temper dashboard` in a separate process and show it below the cell.

    The process outlives the training. It ends with the notebook's kernel or by `terminate()`.

    Args:
        run: the run to show; by default, always the newest one.

    Returns:
        The process of the dashboard.

    Raises:
        ValueError: if the dashboard could not start; the message says why.
    """
    process = start_dashboard(run, output_dir)
    _show(_address(process), height_pixels)
    return process


def _address(process: HelperProcess) -> dict[str, object]:
    """Return the address that the dashboard prints as its first line of output."""
    assert process.stdout is not None
    messages: list[str] = []
    with process.stdout as lines:
        for line in map(bytes.decode, lines):
            if line.startswith("{"):
                return dict(json.loads(line))
            messages.append(line.removeprefix("temper: ").strip())
    process.wait()
    raise InputError(" ".join(messages) or phrase("dashboard.not_started"))


def start_dashboard(run: str | None, output_dir: str | Path) -> HelperProcess:
    """Start `temper dashboard --json` on a free port. It prints its address as the first line."""
    arguments = ["dashboard", "--json", "--port", "0", "--output", str(output_dir)]
    if run is not None:
        arguments.append(run)
    return HelperProcess(
        "infrastructure",
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        own_session=False,  # it ends with the notebook's kernel
    )


def _show(address: Mapping[str, object], height_pixels: int) -> None:
    """Show the dashboard below the cell. On Colab, this uses Colab's own access to the port."""
    if platform() is Platform.COLAB:
        output = importlib.import_module("google.colab.output")
        output.serve_kernel_port_as_iframe(
            address["port"], path=address["path"], height=str(height_pixels)
        )
        return
    display = require("IPython.display", "dashboard.in_notebook")
    display.display(display.IFrame(address["url"], width="100%", height=height_pixels))
