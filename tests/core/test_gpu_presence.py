"""What is certain of GPUs before PyTorch is imported is what PyTorch says."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from infrastructure.core import gpu_presence
from infrastructure.core.gpu_presence import DRIVER_TRACES, has_no_gpu


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str | None) -> None:
    """A PyTorch that is built so; None: none is installed."""

    class Distribution:
        def locate_file(self, path: str) -> Path:
            return folder / path

    def distribution(name: str) -> Distribution:
        if text is None:
            raise PackageNotFoundError(name)
        return Distribution()

    if text is not None:
        (folder / "torch").mkdir()
        (folder / "torch" / "version.py").write_text(text)
    monkeypatch.setattr(gpu_presence, "distribution", distribution)


def test_it_never_contradicts_the_installed_pytorch() -> None:
    if torch.cuda.is_available():
        assert not has_no_gpu()
    if torch.version.cuda is None and torch.version.hip is None:
        assert has_no_gpu()


@pytest.mark.parametrize(
    ("text", "without_driver", "with_driver"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True, True),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True, False),
        ("cuda = None\nhip = '6.3'\n", False, False),
        ("cuda = '12.1'\nhip = None\n", True, False),
        ("nobody = 'knows'\n", False, False),
        ("no python", False, False),
        (None, False, False),
    ],
)
def test_only_what_is_certain(
    text: str | None,
    without_driver: bool,
    with_driver: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    installed(monkeypatch, tmp_path, text)
    assert has_no_gpu(tmp_path) is without_driver
    for number, trace in enumerate(DRIVER_TRACES):
        root = tmp_path / f"machine-{number}"
        (root / trace).mkdir(parents=True)
        assert has_no_gpu(root) is with_driver
    monkeypatch.setattr("sys.platform", "win32")  # where a driver leaves other traces
    assert has_no_gpu(tmp_path) is (without_driver and with_driver)
