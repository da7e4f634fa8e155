"""Where the cache is on machines whose users have homes, and on those whose users have none."""

import os
import tempfile
from pathlib import Path

import pytest

from infrastructure.core import cache_folder
from infrastructure.core.cache_folder import cache_directory


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    cache_folder._among_temporary_files.cache_clear()
    return folder


def home_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(path))
    return path


def nobody_may_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As modes say; the user of a container's tests may write everywhere."""
    may = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: name != path and may(name, mode))


def test_it_is_the_configured_one_or_at_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = home_is(tmp_path / "home", monkeypatch)
    assert cache_directory() == home / ".cache/temper"
    assert cache_directory("~/here") == home / "here"
    assert not home.exists()


def test_a_home_that_cannot_be_written_to_has_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    temporary_files: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = home_is(tmp_path / "home", monkeypatch)
    home.mkdir()
    nobody_may_write(home, monkeypatch)
    for _ in range(2):
        assert cache_directory() == temporary_files / f"temper-cache-{os.getuid()}"
    [line] = caplog.messages
    assert line.startswith(f"core.temporary_cache_folder(folder={cache_directory()}, ")
    assert f"core.cache_not_writable(folder={home}/.cache/temper)" in line
    assert cache_directory().stat().st_mode & 0o777 == 0o700


def test_a_user_without_a_home_has_one_among_temporary_files(
    monkeypatch: pytest.MonkeyPatch, temporary_files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert cache_directory().parent == temporary_files
    [line] = caplog.messages
    assert line.startswith("core.temporary_cache_folder(")
    assert line.endswith("reason=core.no_home_folder())")


@pytest.mark.parametrize("what", ["link", "writable"])
def test_a_folder_that_others_can_write_to_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary_files: Path, what: str
) -> None:
    """The cache holds compiled code."""
    home = home_is(tmp_path / "a file", monkeypatch)
    home.touch()
    usual = temporary_files / f"temper-cache-{os.getuid()}"
    if what == "link":
        (tmp_path / "elsewhere").mkdir()
        usual.symlink_to(tmp_path / "elsewhere")
    else:
        usual.mkdir()
        usual.chmod(0o777)
    folder = cache_directory()
    assert folder != usual
    assert folder.parent == temporary_files
    assert folder.stat().st_mode & 0o777 == 0o700
