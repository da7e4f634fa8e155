"""Drive mounted, refused in every way that Colab's package knows, lost, and let go of."""

import errno
import os
from pathlib import Path

import pytest

from colab import drive
from colab.drive import StorageFolder, flush_drive, mount_drive
from tests.fakes.google_colab import ColabSession


def test_the_folder_on_drive_is_made_and_tried_out(colab_session: ColabSession) -> None:
    place = mount_drive("temper/tests")
    assert place == StorageFolder(
        drive.MOUNT_POINT / "MyDrive/temper/tests",
        True,
        f"notebook.drive_mounted(path={place.path})",
    )
    assert place.path.is_dir()
    assert list((colab_session.cloud / "temper/tests").iterdir()) == []  # the trial left nothing


def test_mounting_twice_mounts_once(colab_session: ColabSession) -> None:
    assert mount_drive() == mount_drive()
    (call,) = colab_session.calls("mount")
    assert call["timeout_ms"] == 120_000


MOUNT_REFUSALS = [
    ("not_colab", "notebook.drive_not_supported"),
    ("enterprise", "notebook.no_drive_in_colab_enterprise"),
    ("no_consent", "notebook.drive_not_permitted"),
    ("stopped", "notebook.drive_program_stopped"),
    ("slow_root", "notebook.drive_top_folder_too_large"),
    ("domain", "notebook.drive_disabled_by_organization"),
    ("settings_file", "notebook.drive_settings_folder_is_a_file"),
    ("no_credentials_server", "notebook.drive_not_mounted(error=KeyError: 'TBE_EPHEM_CREDS_ADDR')"),
    ("nothing_there", "notebook.drive_without_its_folder"),
]


@pytest.mark.parametrize(("failure", "sentence"), MOUNT_REFUSALS)
def test_a_refusal_is_one_sentence_and_a_local_folder(
    colab_session: ColabSession, failure: str, sentence: str
) -> None:
    colab_session.behaves(mount=failure)
    place = mount_drive()
    assert (place.path, place.is_drive) == (Path.cwd() / "temper", False)
    assert sentence in place.reason
    assert "\n" not in place.reason


def make_file(mount: Path) -> None:
    mount.write_text("")


def make_full(mount: Path) -> None:
    (mount / "mine").mkdir(parents=True)


def make_link(mount: Path) -> None:
    mount.symlink_to("/tmp")


@pytest.mark.parametrize(
    ("name", "make", "sentence"),
    [
        ("drive", make_file, "notebook.mount_point_is_a_file"),
        ("drive", make_full, "notebook.mount_point_not_empty"),
        ("drive", make_link, "notebook.mount_point_is_a_link"),
        ("a/drive", lambda mount: None, "notebook.mount_point_parent_missing"),
        ("my drive", lambda mount: None, "notebook.mount_point_with_space"),
    ],
)
def test_a_mount_point_in_the_way_is_reported(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch, name, make, sentence: str
) -> None:
    mount = colab_session.folder.parent / name
    monkeypatch.setattr(drive, "MOUNT_POINT", mount)
    make(mount)
    place = mount_drive()
    assert not place.is_drive
    assert f"{sentence}(mount={mount})" in place.reason


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EROFS, "backup.advice_drive_read_only"),
        (errno.EDQUOT, "backup.advice_drive_full"),
        (errno.EIO, "backup.advice_drive_limit"),
        (errno.ENOSPC, "backup.advice_drive_and_disk_full"),
    ],
)
def test_a_drive_that_keeps_nothing_is_no_place(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(drive, "_try_out", refuse)
    place = mount_drive()
    assert not place.is_drive
    assert sentence in place.reason


def test_a_lost_connection_is_mended_by_mounting_anew(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount_drive()
    lost = [OSError(errno.ENOTCONN, "Transport endpoint is not connected")]
    really = drive._try_out

    def lose_once(folder: Path) -> None:
        if lost:
            raise lost.pop()
        really(folder)

    monkeypatch.setattr(drive, "_try_out", lose_once)
    assert mount_drive().is_drive
    assert [call["force_remount"] for call in colab_session.calls("mount")] == [False, True]


def test_a_drive_that_hangs_is_left_behind(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mount may hold whoever touches it for ever: here a pipe that nobody writes to."""
    mount_drive()
    os.mkfifo(colab_session.cloud / "pipe")
    monkeypatch.setattr(drive, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(drive, "_try_out", lambda folder: (folder.parent / "pipe").read_bytes())
    place = mount_drive()
    assert not place.is_drive
    assert (
        place.reason == "notebook.drive_not_responding(error=core.no_response_in_time(seconds=0))"
    )


@pytest.mark.parametrize("folder", ["", "..", "a/../../b", "/content/x"])
def test_a_folder_outside_of_the_drive_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match=r"notebook\.not_a_drive_folder\("):
        mount_drive(folder)


def test_elsewhere_nothing_is_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPER_PLATFORM", "notebook")
    place = mount_drive()
    assert (place.path, place.is_drive) == (Path.cwd() / "temper", False)
    assert "notebook.no_drive_outside_colab" in place.reason
    assert flush_drive() == "notebook.nothing_to_flush()"


def test_flushing_is_bounded_and_unmounts(colab_session: ColabSession) -> None:
    mount_drive()
    assert flush_drive(5) == "notebook.drive_flushed()"
    assert [call["timeout_ms"] for call in colab_session.calls("flush_and_unmount")] == [5000]
    assert list(drive.MOUNT_POINT.iterdir()) == []


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("failed", "notebook.drive_not_flushed"),
        ("not_colab", "notebook.drive_not_flushed"),
        ("unsupported", "notebook.drive_not_flushed"),
        ("hangs", "notebook.drive_still_uploading"),
    ],
)
def test_a_flush_that_fails_is_one_sentence(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch, failure: str, sentence: str
) -> None:
    monkeypatch.setattr(drive, "GRACE_SECONDS", 0.1)
    colab_session.behaves(flush=failure)
    assert sentence in flush_drive(0.1)
