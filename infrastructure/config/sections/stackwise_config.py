"""Stack-wise training: layers grouped into blocks, stacks and the whole rack.

The fields are flat in the training section; `QLoRA` is a read-only view of those named `qlora_*`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import Field

from infrastructure.config.base import Section
from infrastructure.config.registries import CACHES, CORRUPTIONS, QUANTIZATIONS
from infrastructure.config.types import (
    Allowed,
    Count,
    CountOrZero,
    FromJson,
    Megabytes,
    PathText,
    Positive,
    RegisteredName,
    Share,
    ShareBelowOne,
    SplitCommas,
)


@dataclass(frozen=True)
class QLoRA:
    """The `qlora_*` fields of a training configuration, read as one thing."""

    enabled: bool
    rank: int
    alpha: float
    dropout: float
    lr: float | None
    progressive_enabled: bool
    strategy: str


class ProgressiveConfig(Section):
    """Progressive training: stacks are built and trained one by one."""

    prefix: ClassVar[str] = "training.progressive"

    target_stacks: Count = Field(default=4, description="Stacks of the finished model.")
    trunk_strategy: Literal["frozen", "qlora"] = Field(
        default="frozen", description="What the finished stacks do while the next one trains."
    )
    new_stack_precision: Literal["full", "bf16", "fp16", "nf_fp8"] = Field(
        default="full", description="Precision in which a new stack trains."
    )
    growth: Literal["stages", "once"] = Field(
        default="stages",
        description="A stack after the other, or from the first to all of them in one step.",
    )
    init: Literal["keep", "zero", "copy", "middle"] = Field(
        default="keep",
        description="Weights of a new stack: as they are, silent, of the stack below, of the"
        " middle one.",
    )


class StackwiseFields(Section):
    """The fields of stack-wise training; `TrainingConfig` holds them flat."""

    mode: Literal["layerwise", "blockwise", "fused"] | None = Field(
        default=None, description="What trains at a time: a layer, a block of layers, or all fused."
    )
    block_size: Count = Field(default=4, description="Layers of a block.")
    fusion_mode: Literal["frozen", "trainable"] = Field(
        default="frozen", description="Fused training: whether the blocks below train, too."
    )
    train_head: Literal["first", "always"] = Field(
        default="first",
        description="Final norm and untied head train with the first unit, or with each.",
    )
    with_top: CountOrZero = Field(
        default=0, description="Last units that train in every phase, through the whole model."
    )
    local_loss: Literal["head", "reconstruct"] = Field(
        default="head",
        description="What a unit below the top learns: the model's own loss, or to keep features.",
    )
    reconstruct_weight: Positive = Field(
        default=10.0, description="Weight of the feature reconstruction beside the loss."
    )
    cache_activations: bool | None = Field(
        default=None,
        description="Keep what a frozen trunk makes of each example; none: where it pays.",
    )
    cache_dtype: Literal["fp32", "bf16"] = Field(
        default="bf16", description="Number format of cached activations."
    )
    cache_size: Megabytes = Field(
        default=10000, description="Disk that cached activations may take, in MB."
    )
    end_to_end_scope: Literal["stackwise", "rackwise"] = Field(
        default="rackwise",
        description="End-to-end training: each stack by itself, or the whole rack.",
    )
    progressive: ProgressiveConfig = Field(
        default=ProgressiveConfig(), description="Progressive training."
    )
    time_step_masking: bool = Field(
        default=False, description="Mask a share of the tokens that grows with the time step."
    )
    num_time_steps: Count = Field(default=10, description="Number of time steps.")
    time_step_bins: Annotated[
        list[Annotated[int, Ge(0)]] | None,
        SplitCommas,
        Allowed('a list of time steps such as "0,1,2"'),
    ] = Field(default=None, description="Time steps that are used; none: all.")
    time_step_mask_fractions: Annotated[
        dict[Annotated[int, Ge(0)], Share] | None,
        FromJson,
        Allowed('a mapping from time step to a share from 0 to 1, such as {"0": 0.15}'),
    ] = Field(
        default=None, description="Share of masked tokens at some time steps; linear between."
    )
    time_interpretation: Literal["depth", "input"] = Field(
        default="depth",
        description="Time steps are of the depth (each stack has one) or of the input (drawn).",
    )
    corruption: Annotated[str, RegisteredName(CORRUPTIONS)] = Field(
        default="mask",
        description="What replaces hidden tokens: mask, uniform (any other token) or a registered"
        " name.",
    )
    mask_weighting: Literal["inverse", "none"] = Field(
        default="inverse",
        description="Weight of a hidden token: 1 / the masked share, as in MDLM, or 1.",
    )
    store_all_time_steps: bool = Field(
        default=False, description="Keep the cached activations of every time step."
    )
    time_step_cache_size: Count = Field(
        default=1, description="Time steps whose activations are cached at once."
    )
    quantization_enabled: bool = Field(
        default=False, description="Store finished stacks quantised."
    )
    quantization_type: Annotated[str, RegisteredName(QUANTIZATIONS)] = Field(
        default="nf_fp8",
        description="How finished stacks are stored: nf_fp8, nf4, fp16, fp32 or a registered name.",
    )
    backbone_quantized: bool = Field(
        default=False, description="Keep the backbone quantised while training."
    )
    adapters_full_precision: bool = Field(
        default=True, description="Keep QLoRA matrices in full precision."
    )
    qlora_enabled: bool = Field(
        default=False, description="Train QLoRA matrices on finished stacks."
    )
    qlora_rank: Count = Field(default=16, description="Rank of the QLoRA matrices.")
    qlora_alpha: Positive = Field(default=32, description="QLoRA scaling.")
    qlora_dropout: ShareBelowOne = Field(
        default=0.0, description="Dropout before the QLoRA matrices."
    )
    qlora_lr: Positive | None = Field(
        default=None, description="Learning rate of the QLoRA matrices; none: the training's."
    )
    qlora_progressive_enabled: bool = Field(
        default=False, description="Add QLoRA matrices to the trunk with each new stack."
    )
    qlora_strategy: Literal["simplified", "progressive", "variable"] = Field(
        default="simplified", description="How QLoRA ranks are chosen over the stacks."
    )
    qlora_ranks: Annotated[
        dict[Annotated[int, Ge(0)], Count] | None,
        FromJson,
        Allowed('a mapping from stack to rank, such as {"0": 4}'),
    ] = Field(default=None, description="Ranks of some stacks, for qlora_strategy variable.")
    cache_mode: Literal["stack", "rack"] = Field(
        default="stack",
        description="Which activations are cached: the last frozen stack's, or all.",
    )
    cache_storage: Annotated[str, RegisteredName(CACHES)] = Field(
        default="disk",
        description="What keeps cached activations: disk, or a registered name.",
    )
    cache_dir: PathText | None = Field(
        default=None, description="Where cached activations lie; none: in the run directory."
    )
    save_stacks: bool = Field(default=True, description="Save each finished stack.")
    save_rack: bool = Field(default=False, description="Save the whole rack besides its stacks.")

    @property
    def qlora(self) -> QLoRA:
        """The flat `qlora_*` fields as one frozen view."""
        return QLoRA(
            **{name: getattr(self, f"qlora_{name}") for name in QLoRA.__dataclass_fields__}
        )
