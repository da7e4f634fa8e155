"""The file system of a path is that of the innermost mount around it."""

from pathlib import Path

import pytest

from infrastructure.backup.backends.mounts import Mount, mount_of

MOUNTS = r"""/dev/sda1 / ext4 rw 0 0
/dev/sdb1 /mnt/data xfs
remote: /mnt/data/deep/er fuse.rclone rw 0 0
overlay /mnt/data/deep overlay rw 0 0
disk /my\040own\011disk fuseblk rw 0 0
old /twice nfs rw 0 0
new /twice nfs4 rw 0 0
broken /mnt/data/deep/er/still
"""


@pytest.mark.parametrize(
    ("path", "device", "kind"),
    [
        ("/home/me", "/dev/sda1", "ext4"),
        ("/", "/dev/sda1", "ext4"),
        ("/mnt/data", "/dev/sdb1", "xfs"),
        ("/mnt/data2/x", "/dev/sda1", "ext4"),
        ("/mnt/data/deep/x", "overlay", "overlay"),
        ("/mnt/data/deep/er/still/x", "remote:", "fuse.rclone"),
        ("/my own\tdisk/x", "disk", "fuseblk"),
        ("/twice/x", "new", "nfs4"),
    ],
)
def test_the_innermost_mount_counts(tmp_path: Path, path: str, device: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert mount_of(Path(path), tmp_path / "mounts") == Mount(device, kind)


def test_an_unlisted_mount_is_unknown(tmp_path: Path) -> None:
    assert mount_of(Path("/mnt"), tmp_path / "none") is None
    (tmp_path / "mounts").write_text("/dev/sdb1 /mnt/data xfs rw 0 0\n")
    assert mount_of(Path("/mnt"), tmp_path / "mounts") is None


@pytest.mark.parametrize(
    ("kind", "is_fuse"),
    [("fuse", True), ("fuse.sshfs", True), ("fuseblk", False), ("fusectl", False), ("xfs", False)],
)
def test_programs_in_user_space_are_recognized(kind: str, is_fuse: bool) -> None:
    assert Mount("x", kind).is_fuse is is_fuse
