"""The settings of cache, memory, monitoring and machine limits. Nothing is measured here."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from infrastructure.config.base import ConfigSection, with_fields_of_features
from infrastructure.config.registries import ALERT_SINKS
from infrastructure.config.types import (
    Allowed,
    Count,
    CountOrZero,
    Duration,
    EachOnce,
    Megabytes,
    MemoryAmount,
    PathText,
    Percent,
    Positive,
    RegisteredName,
    ShareAboveZero,
    SplitCommas,
    UsedWhen,
)

OPTIMIZES_MEMORY = UsedWhen(
    lambda config: config.enable_memory_optimization,
    "config.unused_memory_optimization_is_off",
    "config.unused_switch_it_on",
)


class CacheConfig(ConfigSection):
    """The settings of the cache of tokenized data on this machine's disk."""

    prefix: ClassVar[str] = "cache"

    directory: PathText | None = Field(
        default=None,
        description="Cache folder; none: ~/.cache/temper, or a temporary folder if there is no"
        " home folder.",
    )
    memory_size: Megabytes = Field(
        default=1000,
        description="Memory limit for cached data, in MB; larger data is memory-mapped.",
    )
    disk_size: Megabytes = Field(default=10000, description="Disk limit for the cache, in MB.")
    cleanup_interval: CountOrZero = Field(
        default=3600, description="Seconds between two clean-ups of the cache."
    )
    max_age_days: Positive = Field(
        default=7, description="Days after which unused cached data is removed."
    )


class MemoryConfig(ConfigSection):
    """The limits that the memory optimizer enforces."""

    prefix: ClassVar[str] = "memory"
    help_note: ClassVar[str] = "Limits on the memory of this machine and its GPU."

    gpu_memory_fraction: ShareAboveZero | None = Field(
        default=None,
        description="Like {=resources.gpu.memory_limit}, but as a fraction from 0 to 1;"
        " none: all of it.",
    )
    gpu_cache_size: Annotated[MemoryAmount | None, OPTIMIZES_MEMORY] = Field(
        default=None,
        description="Unused memory that PyTorch's GPU allocator may keep; none: any amount.",
    )
    cpu_memory_limit: Annotated[MemoryAmount | None, OPTIMIZES_MEMORY] = Field(
        default=None, description="System memory that the whole run may use; none: no limit."
    )
    worker_memory: MemoryAmount | None = Field(
        default=None, description="System memory that each data worker may use; none: no limit."
    )
    cache_size: MemoryAmount | None = Field(
        default=None,
        description="Limit on the total size of Temper's caches, in memory and on disk;"
        " none: no limit.",
    )
    cache_ttl: Annotated[Count | None, OPTIMIZES_MEMORY] = Field(
        default=None,
        description="Seconds without use after which data cached in memory is dropped; none:"
        " never.",
    )


class AlertThresholds(ConfigSection):
    """The values at which the monitor raises an alert."""

    prefix: ClassVar[str] = "monitor.thresholds"

    cpu_percent: Percent = Field(
        default=90.0,
        description="Alert (severity info) if the CPU load stays above this, in percent.",
    )
    memory_percent: Percent = Field(
        default=85.0, description="Alert if more than this percentage of system memory is in use."
    )
    gpu_utilization: Percent = Field(
        default=95.0,
        description="Alert (severity info) if the GPU load stays above this, in percent.",
    )
    gpu_memory_percent: Percent = Field(
        default=90.0, description="Alert if more than this percentage of GPU memory is in use."
    )
    gpu_temperature: Positive = Field(
        default=85.0, description="Alert if the GPU is hotter than this, in °C."
    )
    training_time_per_step: Positive = Field(
        default=10.0, description="Alert if optimizer steps take longer than this, in seconds."
    )
    gradient_norm: Positive = Field(
        default=100.0, description="Alert if the gradient norm before clipping is above this."
    )


if TYPE_CHECKING:  # the core reads no field of a feature
    MonitorFields = ConfigSection
else:
    MonitorFields = with_fields_of_features("monitor")


class MonitorConfig(MonitorFields):
    """The settings of the monitor: what it watches, and who receives its alerts."""

    prefix: ClassVar[str] = "monitor"

    interval: Duration = Field(
        default=2.0, description="Time between two measurements of the machine."
    )
    alert_sinks: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        RegisteredName(ALERT_SINKS),
        Allowed(
            f"a list of {', '.join(ALERT_SINKS.built_in)}, or a name of your own,"
            " without duplicates"
        ),
    ] = Field(
        default=["console", "log"],
        description="Where alerts are sent.",
    )
    thresholds: AlertThresholds = Field(
        default=AlertThresholds(), description="Values at which the monitor raises an alert."
    )


class GpuResources(ConfigSection):
    """The limits on using a GPU, and the capabilities that a GPU must have."""

    prefix: ClassVar[str] = "resources.gpu"

    memory_limit: MemoryAmount | None = Field(
        default=None,
        description="GPU memory that the run may use, as a size or percentage; none: all of it.",
    )
    compute_capability: Positive | None = Field(
        default=None,
        description="Refuse a GPU below this CUDA compute capability, such as 8.0;"
        " none: accept any.",
    )


class ResourcesConfig(ConfigSection):
    """The limits on this machine's resources."""

    prefix: ClassVar[str] = "resources"

    gpu: GpuResources = Field(default=GpuResources(), description="GPU limits.")
