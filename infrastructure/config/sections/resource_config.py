"""Cache, memory, monitoring and machine limits. Looks at no machine."""

import re
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from infrastructure.config.base import ConfigSection
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
from infrastructure.core.errors import InputError

_HOST_AND_PORT = re.compile(r"(?:([\w.-]+|\[[0-9A-Fa-f:]+\]):)?(\d{1,5})")
_LOOPBACK = "127.0.0.1"


OPTIMIZES_MEMORY = UsedWhen(
    lambda config: config.enable_memory_optimization,
    "config.unused_memory_optimization_is_off",
    "config.unused_switch_it_on",
)


def _host_and_port(value: object) -> object:
    """`HOST:PORT`; a port alone is loopback's."""
    if value is None:
        return None
    match = _HOST_AND_PORT.fullmatch(str(value).strip())
    if isinstance(value, bool) or match is None or not 0 < int(match[2]) < 1 << 16:
        raise InputError("config.invalid_address")
    return f"{match[1] or _LOOPBACK}:{int(match[2])}"


class CacheConfig(ConfigSection):
    """The cache of tokenised data on this machine's disk."""

    prefix: ClassVar[str] = "cache"

    directory: PathText | None = Field(
        default=None,
        description="Folder of the cache; none: ~/.cache/temper, without a home folder a temporary"
        " one.",
    )
    memory_size: Megabytes = Field(
        default=1000,
        description="Memory that cached data may take, in MB; larger data is memory-mapped.",
    )
    disk_size: Megabytes = Field(default=10000, description="Disk that the cache may take, in MB.")
    cleanup_interval: CountOrZero = Field(
        default=3600, description="Seconds between two clean-ups of the cache."
    )
    max_age_days: Positive = Field(
        default=7, description="Cached data unused for longer is removed."
    )


class MemoryConfig(ConfigSection):
    """Limits that the memory optimizer holds."""

    prefix: ClassVar[str] = "memory"

    gpu_memory_fraction: ShareAboveZero | None = Field(
        default=None, description="Share of the GPU's memory that may be used, from 0 to 1."
    )
    gpu_cache_size: Annotated[MemoryAmount | None, OPTIMIZES_MEMORY] = Field(
        default=None, description="Memory that the GPU allocator may keep cached."
    )
    cpu_memory_limit: Annotated[MemoryAmount | None, OPTIMIZES_MEMORY] = Field(
        default=None, description="Main memory that the whole training may take."
    )
    worker_memory: MemoryAmount | None = Field(
        default=None, description="Main memory that each data worker may take."
    )
    cache_size: MemoryAmount | None = Field(
        default=None, description="Memory and disk that all caches together may take."
    )
    cache_ttl: Annotated[Count | None, OPTIMIZES_MEMORY] = Field(
        default=None, description="Seconds after which an entry of a memory cache is dropped."
    )


class AlertThresholds(ConfigSection):
    """Values at which the monitor raises an alert."""

    prefix: ClassVar[str] = "monitor.thresholds"

    cpu_percent: Percent = Field(default=90.0, description="CPU load, in percent.")
    memory_percent: Percent = Field(default=85.0, description="Main memory, in percent.")
    gpu_utilization: Percent = Field(default=95.0, description="GPU load, in percent.")
    gpu_memory_percent: Percent = Field(default=90.0, description="GPU memory, in percent.")
    gpu_temperature: Positive = Field(default=85.0, description="GPU temperature, in °C.")
    training_time_per_step: Positive = Field(
        default=10.0, description="Time of one optimizer step, in seconds."
    )
    gradient_norm: Positive = Field(
        default=100.0, description="Norm of the gradient before clipping."
    )
    data_wait_percent: Percent = Field(
        default=50.0, description="Share of a step spent waiting for data, in percent."
    )
    tied_steps: Count = Field(
        default=20, description="Steps in a row whose answers to each prompt are rewarded alike."
    )
    disk_free: Megabytes = Field(
        default=1000, description="Free disk space below which there is an alert, in MB."
    )
    checkpoint_age: Duration = Field(
        default=7200.0, description="Age of the newest checkpoint, in seconds."
    )
    backup_age: Duration = Field(
        default=7200.0, description="Age of the newest confirmed backup, in seconds."
    )
    copier_failures: Count = Field(
        default=2, description="Ends in a row of the process that copies backups."
    )


class MonitorConfig(ConfigSection):
    """What the monitor watches, and whom it tells."""

    prefix: ClassVar[str] = "monitor"

    interval: Duration = Field(default=2.0, description="Time between two looks at the machine.")
    alert_sinks: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        RegisteredName(ALERT_SINKS),
        Allowed(
            "a list of console, log, notebook, webhook, apprise, or a name of one's own, each once"
        ),
    ] = Field(
        default=["console", "log", "notebook"],
        description="Who is told; addresses are in ALERT_WEBHOOK_URL and APPRISE_URLS.",
    )
    alert_cooldown: Duration = Field(
        default=300.0, description="Least time between two alerts of one kind."
    )
    prometheus: Annotated[
        str | None,
        BeforeValidator(_host_and_port),
        Allowed('a port such as 9400, or an address such as "0.0.0.0:9400"'),
    ] = Field(
        default=None, description="Address of an endpoint for Prometheus; a port alone: loopback."
    )
    profile_steps: CountOrZero = Field(
        default=0, description="Steps that the PyTorch profiler records, after two of warm-up."
    )
    thresholds: AlertThresholds = Field(
        default=AlertThresholds(), description="When the monitor raises an alert."
    )


class GpuResources(ConfigSection):
    """What of a GPU may be used, and what it must be."""

    prefix: ClassVar[str] = "resources.gpu"

    memory_limit: MemoryAmount | None = Field(
        default=None, description="GPU memory that the training may take."
    )
    compute_capability: Positive | None = Field(
        default=None,
        description="Least CUDA compute capability that the GPU must have, such as 8.0.",
    )


class ResourcesConfig(ConfigSection):
    """Machine limits."""

    prefix: ClassVar[str] = "resources"

    gpu: GpuResources = Field(default=GpuResources(), description="GPU limits.")
