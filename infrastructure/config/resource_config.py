"""Cache, memory, monitoring and machine limits. Looks at no machine."""

from typing import Annotated, ClassVar

from pydantic import Field

from infrastructure.config.section import Section
from infrastructure.config.values import (
    Count,
    CountOrZero,
    Later,
    Megabytes,
    MemoryAmount,
    PathText,
    Percent,
    Positive,
    ShareAboveZero,
)

_C = Later("C")
_E = Later("E")


class CacheConfig(Section):
    """The cache of tokenised data on this machine's disk."""

    prefix: ClassVar[str] = "cache"

    directory: PathText | None = Field(
        default=None, description="Folder of the cache; none: ~/.cache/temper."
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


class MemoryConfig(Section):
    """Limits that the memory optimizer holds."""

    prefix: ClassVar[str] = "memory"

    gpu_memory_fraction: ShareAboveZero | None = Field(
        default=None, description="Share of the GPU's memory that may be used, from 0 to 1."
    )
    gpu_cache_size: MemoryAmount | None = Field(
        default=None, description="Memory that the GPU allocator may keep cached."
    )
    cpu_memory_limit: MemoryAmount | None = Field(
        default=None, description="Main memory that the whole training may take."
    )
    worker_memory: MemoryAmount | None = Field(
        default=None, description="Main memory that each data worker may take."
    )
    cache_size: MemoryAmount | None = Field(
        default=None, description="Memory and disk that all caches together may take."
    )
    cache_ttl: Count | None = Field(
        default=None, description="Seconds after which an entry of a memory cache is dropped."
    )


class AlertThresholds(Section):
    """Values above which the monitor raises an alert."""

    prefix: ClassVar[str] = "monitor.thresholds"

    cpu_percent: Annotated[Percent, _C] = Field(default=90.0, description="CPU load, in percent.")
    memory_percent: Annotated[Percent, _C] = Field(
        default=85.0, description="Main memory, in percent."
    )
    gpu_utilization: Annotated[Percent, _C] = Field(
        default=95.0, description="GPU load, in percent."
    )
    gpu_memory_percent: Annotated[Percent, _C] = Field(
        default=90.0, description="GPU memory, in percent."
    )
    gpu_temperature: Annotated[Positive, _C] = Field(
        default=85.0, description="GPU temperature, in °C."
    )
    training_time_per_step: Annotated[Positive, _C] = Field(
        default=10.0, description="Time of one optimizer step, in seconds."
    )
    gradient_norm: Annotated[Positive, _C] = Field(
        default=100.0, description="Norm of the gradient before clipping."
    )


class MonitorConfig(Section):
    """What the monitor watches."""

    prefix: ClassVar[str] = "monitor"

    thresholds: AlertThresholds = Field(
        default=AlertThresholds(), description="When the monitor raises an alert."
    )


class GpuResources(Section):
    """What of a GPU may be used, and what it must be."""

    prefix: ClassVar[str] = "resources.gpu"

    memory_limit: MemoryAmount | None = Field(
        default=None, description="GPU memory that the training may take."
    )
    compute_capability: Positive | None = Field(
        default=None,
        description="Least CUDA compute capability that the GPU must have, such as 8.0.",
    )


class QuantumResources(Section):
    """Who answers the quantum step, and at what cost."""

    prefix: ClassVar[str] = "resources.quantum"

    solver: Annotated[str, _E] = Field(default="auto", description="Name of the sampler.")
    max_qubits: Annotated[Count, _E] = Field(
        default=5000, description="Largest problem, in variables."
    )
    timeout: Annotated[Positive, _E] = Field(
        default=300, description="Hard bound on the wall time of one answer, in seconds."
    )


class ResourcesConfig(Section):
    """Machine limits."""

    prefix: ClassVar[str] = "resources"

    gpu: GpuResources = Field(default=GpuResources(), description="GPU limits.")
    quantum: QuantumResources = Field(
        default=QuantumResources(), description="Quantum solver limits."
    )
