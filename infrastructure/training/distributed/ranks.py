"""Start, joining and end of the other ranks, from rank 0's side."""

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.launcher import LaunchedProcess
from infrastructure.core.messages import phrase
from infrastructure.training.distributed.group import LIMIT_SECONDS, Group, JoinedGroup, Welcome
from infrastructure.training.distributed.members import Member, StartedRanks, by_launcher

# Time limit for a process that was asked to end, or whose connection broke.
PATIENCE_SECONDS = 5.0


class Ranks:
    """The ranks of one run. The other processes belong to it from `join` until `close`.

    Args:
        config: configuration of the whole run, from which each rank builds its model and data.
        size: number of ranks, including this process.
        device: the device on which rank 0 computes.
        launched_as: information from the launcher that started the other ranks. None: this process
            starts them.
        limit_seconds: see `JoinedGroup`.

    Attributes:
        group: the group of the current training.
    """

    is_first = True

    def __init__(
        self,
        config: DeploymentConfig,
        size: int,
        device: torch.device,
        launched_as: LaunchedProcess | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.config, self.size, self.device = config, size, device
        self.launched_as, self.limit_seconds = launched_as, limit_seconds
        self.group: JoinedGroup | None = None
        self._started: StartedRanks | None = None
        self._member: Member | None = None
        self._num_threads = torch.get_num_threads()

    def launch(self) -> None:
        """Start the other ranks, which takes a while. Each then waits until `join`."""
        if self._member is not None:
            return
        if self.launched_as is not None:
            self._member = by_launcher(self.launched_as)
            return
        num_threads = self._share_of_threads if self._shares_cores else None
        self._started = StartedRanks(self.size, num_threads)
        self._member = self._started.member

    def join(self, welcome: Welcome = do_nothing) -> Group:
        """Wait for all ranks, and return their group.

        Args:
            welcome: called with the configuration and the group when all ranks have joined, to send
                them what to train.

        Raises:
            ProcessLostError: a rank is unavailable. The message says which one, and why.
        """
        if self.group is not None:
            return self.group
        self.launch()
        assert self._member is not None
        try:
            self._member.call_others(self.device.type, self.limit_seconds)
            if self._shares_cores:
                torch.set_num_threads(self._share_of_threads)
            self.group = JoinedGroup(
                self._member.store,
                0,
                self.size,
                self.device,
                local_rank=self._member.local_rank,
                limit_seconds=self.limit_seconds,
                watch=self._refuse_dead,
            )
            welcome(self.config, self.group)
        except BaseException as error:
            self.close(str(error))
            raise
        return self.group

    def close(self, reason: str | None = None) -> None:
        """Release the other ranks; a second call does nothing.

        Args:
            reason: the error of this rank, which is sent to the others. None: no error.
        """
        if self.group is not None:
            self.group.leave(reason)
        if self._started is not None:
            is_joined = self.group is not None
            self._started.end(PATIENCE_SECONDS if is_joined else 0.0)
        if self.group is not None:  # no exchange waits for a live process now
            self.group.close(reason)
        self.group, self._started, self._member = None, None, None
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)

    @property
    def _shares_cores(self) -> bool:
        """True if the ranks must divide this machine's cores among themselves. A launcher sets this
        itself.
        """
        return self.device.type == "cpu" and self.launched_as is None

    @property
    def _share_of_threads(self) -> int:
        return max(1, self._num_threads // self.size)

    def _refuse_dead(self) -> None:
        for rank, process in (self._started.processes if self._started else {}).items():
            fate = process.fate()
            if fate is None:
                continue
            name = phrase(
                "training.rank_of_size_with_pid", rank=rank, size=self.size, pid=process.pid
            )
            reason = self.group.reason_of(rank) if self.group is not None else None
            if reason:
                raise ProcessLostError("training.rank_failed", name=name, reason=reason)
            raise ProcessLostError(
                "training.rank_process_gone",
                name=name,
                fate=fate,
                how_to_resume=phrase("training.same_command_resumes"),
            )
