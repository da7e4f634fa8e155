"""The root of the configuration: sections, and what concerns the whole run."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from infrastructure.config.data_config import DataConfig
from infrastructure.config.model_config import ModelConfig
from infrastructure.config.resource_config import (
    CacheConfig,
    MemoryConfig,
    MonitorConfig,
    ResourcesConfig,
)
from infrastructure.config.section import Section
from infrastructure.config.training_config import TrainingConfig
from infrastructure.config.values import Allowed, Later, LogLevel, PathText, Percent


def _device_list(value: Any) -> Any:
    """`0` and `[0, 1]` are written as CUDA wants them: "0" and "0,1"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list) else value


class DeploymentConfig(Section):
    """Everything that one run is told."""

    model: ModelConfig = Field(
        default=ModelConfig(), description="Which model, and how it is loaded."
    )
    data: DataConfig = Field(
        default=DataConfig(), description="Which data, and how it becomes batches."
    )
    training: TrainingConfig = Field(
        default=TrainingConfig(), description="How the model is trained."
    )
    cache: CacheConfig = Field(default=CacheConfig(), description="The cache of tokenised data.")
    memory: MemoryConfig = Field(default=MemoryConfig(), description="Memory limits.")
    monitor: MonitorConfig = Field(default=MonitorConfig(), description="Monitoring.")
    resources: ResourcesConfig = Field(default=ResourcesConfig(), description="Machine limits.")

    output_dir: PathText = Field(
        default="runs", description="Folder in which run directories are made."
    )
    run_name: str | None = Field(
        default=None, description="Name of the run; none: made from the time."
    )
    log_level: LogLevel = Field(default="INFO", description="Least severe message that is logged.")
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | Annotated[str, StringConstraints(pattern=r"^cuda:\d+$")],
        Allowed('"auto", "cpu", "cuda" or a GPU such as "cuda:0"'),
    ] = Field(
        default="auto", description="Where the training computes; auto: a GPU if there is one."
    )
    cuda_visible_devices: Annotated[str | None, BeforeValidator(_device_list)] = Field(
        default=None, description='GPUs that this run may see, such as "0"; "" hides all.'
    )
    enable_gpu_optimization: Annotated[bool, Later("C")] = Field(
        default=True,
        description="Choose precision, kernels and compiling for the GPU by measurement.",
    )
    enable_memory_optimization: Annotated[bool, Later("C")] = Field(
        default=True, description="Hold max_memory_percent by releasing and moving memory."
    )
    enable_monitoring: Annotated[bool, Later("C")] = Field(
        default=True, description="Watch the machine and raise alerts while training."
    )
    enable_backups: Annotated[bool, Later("B")] = Field(
        default=True,
        description="Copy checkpoints to a place that this machine's death cannot reach.",
    )
    enable_testing: Annotated[bool, Later("C")] = Field(
        default=True, description="Check model, data and machine in seconds before the training."
    )
    max_memory_percent: Annotated[Percent, Later("C")] = Field(
        default=85.0, description="Main memory above which memory is released, in percent."
    )
