"""The dashboard below a notebook's cell, in a process of its own."""

import sys
import urllib.request
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import IPython.display
import pytest

from infrastructure.features.dashboard import notebook
from infrastructure.features.dashboard.notebook import show_dashboard
from tests.monitoring.written_run import write_run


def test_elsewhere_the_page_is_framed_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "a")
    shown: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    process = show_dashboard(output_dir=tmp_path, height_pixels=500)
    try:
        (frame,) = shown
        assert (frame.width, frame.height) == ("100%", 500)
        with urllib.request.urlopen(frame.src, timeout=60) as answer:
            assert b"<h1>a" in answer.read()
    finally:
        process.terminate()
        process.wait()


def test_on_colab_the_port_is_served_with_the_token_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colab's proxy asks under a name of its own, so the token must be in what it asks for."""
    write_run(tmp_path, "a")
    served: list[tuple[int, str, str]] = []

    def serve_kernel_port_as_iframe(
        port: int, path: str = "/", width: str = "100%", height: str = "400"
    ) -> None:
        served.append((port, path, height))

    output = ModuleType("google.colab.output")
    output.serve_kernel_port_as_iframe = serve_kernel_port_as_iframe  # type: ignore[attr-defined]
    monkeypatch.setenv("TEMPER_PLATFORM", "colab")
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    process = show_dashboard("a", tmp_path)
    try:
        ((port, path, height),) = served
        assert height == "720"
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", headers={"Host": "x.colab.example"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"<h1>a" in answer.read()
    finally:
        process.terminate()
        process.wait()


def test_a_dashboard_that_cannot_start_gives_the_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    with pytest.raises(ValueError, match="what=run or checkpoint, name=b, "):
        show_dashboard("b", tmp_path)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (b"temper: first\n second \n", "^first second$"),
        (b"", r"^dashboard\.not_started\(\)$"),
        (b'a note\n{"port": 7, "path": "/"}\nlater\n', ""),
    ],
)
def test_the_address_is_the_first_object_that_is_printed(printed: bytes, reason: str) -> None:
    process: Any = SimpleNamespace(stdout=BytesIO(printed), wait=lambda: None)
    if reason:
        with pytest.raises(ValueError, match=reason):
            notebook._address(process)
    else:
        assert notebook._address(process) == {"port": 7, "path": "/"}
