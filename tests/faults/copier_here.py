"""The copier of a run in a thread of the training's own process, so that one recorder sees both."""

import queue
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from infrastructure.backup import run_backup
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier import Copier
from infrastructure.backup.replication.copier_client import CopierClient
from infrastructure.backup.replication.copier_process import StatusFile
from infrastructure.backup.replication.folder_upload import Publication
from infrastructure.backup.replication.status import LOCK_SUFFIX
from infrastructure.core.lock import Lock

LONGEST_WAIT_SECONDS = 0.02


class CopierHere(CopierClient):
    """As the client of a copier process, without a process."""

    _thread: threading.Thread | None = None
    _is_over = False

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._requests: queue.SimpleQueue[Publication | str] = queue.SimpleQueue()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    @property
    def process_id(self) -> int | None:
        return None

    def start(self) -> None:
        if self._thread is None:
            self._is_over = False
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()

    def nudge(self) -> None:
        self.start()

    def publish(self, what: Publication) -> None:
        self._requests.put(what)
        self.start()

    def look_again(self, token: str) -> None:
        self._requests.put(token)
        self.start()

    def close(self, seconds: float = 0.0) -> None:
        thread, self._thread, self._is_over = self._thread, None, True
        if thread is not None:
            thread.join()

    def wait(self, seconds: float) -> bool:
        return True

    def _serve(self) -> None:
        settings, file = self.settings, StatusFile(Path(self.settings.status))
        file.path.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(file.path.with_suffix(LOCK_SUFFIX))
        lock.take()
        copier = Copier(
            Store(Path(settings.store)),
            settings.link(),
            settings.retention,
            record=settings.record,
            on_piece=lambda: None,
        )
        while not (self._is_over and self._requests.empty() and copier.is_done):
            time.sleep(min(LONGEST_WAIT_SECONDS, copier.tick()))
            while not self._requests.empty():
                request = self._requests.get()
                if isinstance(request, str):
                    copier.look_again(request)
                else:
                    copier.publish(request)
            copier.nudge()
            file.show(copier.status())
        file.write(replace(copier.status(), state="finished"))
        copier.close()
        lock.release()


def use_it() -> None:
    """Let all backups of this process copy in threads."""
    run_backup.CopierClient = CopierHere  # type: ignore[misc]
