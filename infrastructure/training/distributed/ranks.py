"""Rank 0's side of a group: when the other ranks start, join and end."""

from collections.abc import Callable

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.launcher import LaunchedProcess
from infrastructure.core.messages import phrase
from infrastructure.training.distributed.group import LIMIT_SECONDS, Group, JoinedGroup
from infrastructure.training.distributed.members import Member, StartedRanks, by_launcher

# A process that was told to end, or whose connection broke, is gone after so long.
PATIENCE_SECONDS = 5.0


class Ranks:
    """The ranks of one training; they are there from `join` until `close`.

    Args:
        config: of the whole run; the others build their model and data from it.
        size: ranks, this process included.
        device: that rank 0 computes on.
        launched_as: what a launcher said that has started the others; None: they are started here.
        limit_seconds: see `JoinedGroup`.

    Attributes:
        welcome: called with the group when everybody is there; tells them what they train.
        group: of the training that runs now.
        moved_bytes: of tensors that rank 0 has exchanged in the trainings that are over.
    """

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
        self.welcome: Callable[[Group], None] | None = None
        self.group: JoinedGroup | None = None
        self._started: StartedRanks | None = None
        self._member: Member | None = None
        self.moved_bytes = 0
        self._num_threads = torch.get_num_threads()

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started here."""
        return [p.pid for p in self._started.processes.values()] if self._started else []

    def launch(self) -> None:
        """Start the others, which takes them a while; they wait for `join` then."""
        if self._member is not None:
            return
        if self.launched_as is not None:
            self._member = by_launcher(self.launched_as)
            return
        num_threads = self._share_of_threads if self._shares_cores else None
        self._started = StartedRanks(self.size, num_threads)
        self._member = self._started.member

    def join(self) -> Group:
        """The group, with everybody in it.

        Raises:
            ProcessLostError: a rank cannot be had; says which, and why.
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
            if self.welcome is not None:
                self.welcome(self.group)
        except BaseException as error:
            self.close(str(error))
            raise
        return self.group

    def close(self, reason: str | None = None) -> None:
        """Let the others go; a second call does nothing.

        Args:
            reason: what failed here, which they are told; None: all is done.
        """
        if self.group is not None:
            self.group.leave(reason)
        if self._started is not None:
            is_joined = self.group is not None
            self._started.end(PATIENCE_SECONDS if is_joined else 0.0)
        if self.group is not None:  # none of its exchanges waits for a living process now
            self.group.close(reason)
            self.moved_bytes += self.group.moved_bytes
        self.group, self._started, self._member = None, None, None
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)

    @property
    def _shares_cores(self) -> bool:
        """Whether all ranks compute with the cores of this machine; a launcher has seen to it that
        they do not take them twice."""
        return self.device.type == "cpu" and self.launched_as is None

    @property
    def _share_of_threads(self) -> int:
        return max(1, self._num_threads // self.size)

    def _refuse_dead(self) -> None:
        """Raises:
        ProcessLostError: a process that was started here has ended.
        """
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
