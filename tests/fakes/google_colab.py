"""A Colab session for tests: its package, its Drive, its secrets, and a kernel with a page.

    def test_something(colab_session: ColabSession) -> None:
        colab_session.behaves(mount="no_consent")

In another process (a real kernel) the same package is found with `variables(folder)`.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import colab.drive
import colab.runtime
import colab.secrets
import colab.session_clock

SITE = Path(__file__).resolve().parent / "colab_site"


def variables(folder: Path) -> dict[str, str]:
    """What makes another process find the package and take its machine for Colab's."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return {
        "FAKE_COLAB": str(folder),
        "PYTHONPATH": path,
        "TEMPER_PLATFORM": "colab",
        "TEMPER_SESSION_HOURS": "1000",  # the machine of a test may have run for days
    }


@dataclass
class ColabSession:
    """The folder that the stand-in package looks at."""

    folder: Path
    behaviours: dict[str, Any] = field(default_factory=dict)

    @property
    def cloud(self) -> Path:
        """What lies on Drive."""
        return self.folder / "cloud"

    def behaves(self, **behaviours: Any) -> None:
        """How the package behaves from now on."""
        self.behaviours |= behaviours
        (self.folder / "behaviour.json").write_text(json.dumps(self.behaviours))

    def calls(self, name: str) -> list[dict[str, Any]]:
        """What was called so far."""
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call for call in map(json.loads, lines) if call["call"] == name]


@pytest.fixture
def colab_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ColabSession]:
    """This process plays a kernel on Colab; its Drive is mounted in `tmp_path`."""
    folder = tmp_path / "google"
    folder.mkdir()
    monkeypatch.setenv("FAKE_COLAB", str(folder))
    monkeypatch.setenv("TEMPER_PLATFORM", "colab")
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setattr(colab.drive, "MOUNT_POINT", tmp_path / "drive")
    began = time.time() - 600  # the machine of a test may have run for days
    monkeypatch.setattr(colab.session_clock, "session_start", lambda where: began)
    monkeypatch.setattr(colab.secrets._colab, "silent", "")
    monkeypatch.setattr(colab.runtime, "in_notebook_kernel", lambda: True)
    yield ColabSession(folder)
    for name in [n for n in sys.modules if n == "google.colab" or n.startswith("google.colab.")]:
        del sys.modules[name]
    vars(sys.modules.get("google", sys)).pop("colab", None)
