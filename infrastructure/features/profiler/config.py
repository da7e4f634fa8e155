"""The setting of the profiler."""

from typing import ClassVar

from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import CountOrZero


class ProfilerMonitor(ConfigSection):
    """The field of the profiler in the section of the monitor."""

    prefix: ClassVar[str] = "monitor"

    profile_steps: CountOrZero = Field(
        default=0, description="Steps that the PyTorch profiler records, after two warm-up steps."
    )
