"""A user-defined storage backend: two disks; a backup counts when both of them have it.

    cd examples && temper train --backup-place own_storage:TwoDisks:///media/usb,/mnt/nas

A backend for something else is in CONTRIBUTING.md, with the suite that says whether it is safe.
"""

from pathlib import Path

import temper


class TwoDisks(temper.FolderPlace):
    rename, truncate = temper.Place.rename, temper.Place.truncate  # by writing, so on both

    def __init__(self, url):
        one, other = map(Path, url.partition("://")[2].split(","))
        super().__init__(one)
        self.url, self.other = url, temper.FolderPlace(other)

    def write(self, path, buffers):
        super().write(path, buffers)
        self.other.write(path, buffers)

    def remove(self, path):
        super().remove(path)
        self.other.remove(path)

    def confirm(self, path, content):
        return super().confirm(path, content) and self.other.confirm(path, content)
