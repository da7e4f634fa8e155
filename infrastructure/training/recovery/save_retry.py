"""Handling of failed saves: tolerate a few in a row, retry soon, then raise."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase
from infrastructure.optimization.device_errors import is_out_of_memory
from infrastructure.training.core.state import RecoveryKind, TrainingState
from infrastructure.training.recovery.recovery_log import record_recovery

RETRY_SECONDS = 10.0
MAX_FAILED_SAVES = 2  # in a row


@dataclass
class SaveRetryPolicy:
    """A counter of consecutive failed saves, which decides when to retry.

    Attributes:
        max_failed: number of consecutive failures that are tolerated.
        retry_seconds: time until the first retry. It doubles with each failure. Regular saves are
            not delayed.
        count: failures since the last committed save.
    """

    max_failed: int = MAX_FAILED_SAVES
    retry_seconds: float = RETRY_SECONDS
    clock: Callable[[], float] = time.monotonic
    count: int = 0
    _next_attempt: float = float("inf")

    @property
    def is_retry_due(self) -> bool:
        """True if a failed save should be retried now."""
        return self.clock() >= self._next_attempt

    def reset(self) -> None:
        """Reset the count after a save was committed."""
        self.count = 0
        self._next_attempt = float("inf")

    @contextmanager
    def tolerated(self, state: TrainingState) -> Iterator[None]:
        """Tolerate storage errors and lack of memory inside the context, and schedule a retry.

        Raises:
            StorageError: too many saves have failed in a row. The message contains the last cause.
        """
        try:
            yield
        except Exception as error:
            if not (isinstance(error, StorageError | OSError) or is_out_of_memory(error)):
                raise
            self._take(state, error)

    def _take(self, state: TrainingState, error: Exception) -> None:
        self.count += 1
        if self.count > self.max_failed:
            raise StorageError(
                "training.too_many_failed_saves",
                count=self.count,
                limit=self.max_failed,
                error=error,
            ) from error
        wait_seconds = self.retry_seconds * 2 ** (self.count - 1)
        self._next_attempt = self.clock() + wait_seconds
        action = phrase("training.save_retried_later", wait_seconds=wait_seconds)
        record_recovery(state, RecoveryKind.SAVE_REFUSED, action, str(error))
