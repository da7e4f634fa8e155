"""Settings of block-wise training, which groups layers into blocks, stacks and the whole rack.

The fields are flat in the training section; `QLoRA` is a read-only view of those named `qlora_*`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from pydantic import Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.sections.training_fields import TrainingFields
from infrastructure.config.types import (
    SAME_RESULT,
    Allowed,
    Count,
    FromJson,
    Megabytes,
    PathText,
    Positive,
    RegisteredName,
    Share,
    ShareBelowOne,
    SplitCommas,
    UsedWhen,
)
from infrastructure.features.stackwise.registries import CACHES, CORRUPTIONS, QUANTIZATIONS

STRATEGIES = ("progressive", "end_to_end")


def is_stackwise(config: Any) -> bool:
    """Return whether the strategy of a configuration is block-wise."""
    return config.training.strategy_for(config.model) in STRATEGIES


_IN_BLOCKS = UsedWhen(
    lambda config: config.training.mode in ("blockwise", "fused"),
    "stackwise.unused_mode_has_no_blocks",
)
_TOGETHER = UsedWhen(
    lambda config: is_stackwise(config) and not config.training.trains_units_in_turn,
    "stackwise.unused_not_end_to_end",
)
_MAKES_STACKS = UsedWhen(
    lambda config: is_stackwise(config) and config.training.mode is None,
    "stackwise.unused_no_stacks",
)
_PROGRESSIVE = UsedWhen(
    lambda config: config.training.strategy == "progressive",
    "stackwise.unused_not_progressive",
)
_IN_TURN = UsedWhen(
    lambda config: config.training.trains_units_in_turn, "stackwise.unused_nothing_trains_in_turn"
)
_STACKWISE = UsedWhen(
    is_stackwise,
    "stackwise.unused_not_stackwise",
    "stackwise.unused_set_strategy_or_mode",
)
_RECONSTRUCTS = UsedWhen(
    lambda config: config.training.local_loss == "reconstruct",
    "stackwise.unused_not_reconstruct",
)
_MASKED = UsedWhen(
    lambda config: config.training.time_step_masking, "stackwise.unused_masking_is_off"
)
_CACHED = UsedWhen(
    lambda config: (
        config.training.trunk_can_be_cached and config.training.cache_activations is not False
    ),
    "stackwise.unused_no_trunk_is_cached",
)
_CACHED_STEPS = UsedWhen(
    lambda config: config.training.time_step_masking and config.training.trunk_can_be_cached,
    "stackwise.unused_no_steps_are_cached",
)
_QUANTIZED = UsedWhen(
    lambda config: config.training.trunk_is_quantized,
    "stackwise.unused_stack_quantization_is_off",
)
_QLORA_TRUNK = UsedWhen(
    lambda config: config.training.qlora_enabled or config.training.trunk_is_adapted,
    "stackwise.unused_stack_qlora_is_off",
)
_QLORA = UsedWhen(
    lambda config: (
        _QLORA_TRUNK.holds(config) or config.training.progressive.new_stack_precision == "nf_fp8"
    ),
    "stackwise.unused_stack_qlora_is_off",
)
_VARIABLE = UsedWhen(
    lambda config: config.training.qlora_strategy == "variable",
    "stackwise.unused_qlora_not_variable",
)


@dataclass(frozen=True)
class QLoRA:
    """The `qlora_*` fields of a training configuration as one read-only object."""

    enabled: bool
    rank: int
    alpha: float
    dropout: float
    lr: float | None
    progressive_enabled: bool | None
    strategy: str


class ProgressiveConfig(ConfigSection):
    """Settings of progressive training: stacks of layers are added and trained one by one."""

    prefix: ClassVar[str] = "training.progressive"

    target_stacks: Annotated[Count, _MAKES_STACKS] = Field(
        default=4, description="Number of stacks in the finished model."
    )
    trunk_strategy: Annotated[Literal["frozen", "qlora"], _IN_TURN] = Field(
        default="frozen",
        description="While a stack trains, finished stacks are frozen, or their QLoRA matrices"
        " train (qlora).",
    )
    new_stack_precision: Annotated[Literal["full", "bf16", "fp16", "nf_fp8"], _IN_TURN] = Field(
        default="full",
        description="Precision of the stack that trains; nf_fp8: fp8 weights, and only"
        " QLoRA matrices train.",
    )
    growth: Annotated[Literal["stages", "once"], _PROGRESSIVE] = Field(
        default="stages",
        description="Add one stack after another (stages), or all others after the first (once).",
    )
    init: Annotated[Literal["keep", "copy"], _PROGRESSIVE] = Field(
        default="keep",
        description="Initial weights of a new stack; keep: those in the model; copy:"
        " those of the stack below.",
    )


class StackwiseFields(TrainingFields):
    """The settings of block-wise training, which `TrainingConfig` has as flat fields."""

    if TYPE_CHECKING:
        strategy: str  # of the section

    heading: ClassVar[str] = "block-wise"
    measured: ClassVar[tuple[str, ...]] = (
        *("time_step_masking", "num_time_steps", "time_step_bins", "time_step_mask_fractions"),
        *("time_interpretation", "corruption", "mask_weighting"),
    )
    help_note: ClassVar[str] = (
        "Block-wise training trains the layers in parts, one after another. A block is a group of"
        " layers. A stack is a larger group, by which a model can grow. A unit is what is"
        " trained at one time: a layer, a block or a stack. The trunk is all layers below the unit,"
        " and the rack is the whole model. A time step is a level of masking: the higher it is,"
        " the more tokens are masked."
    )
    mode: Literal["layerwise", "blockwise", "fused"] | None = Field(
        default=None,
        description="Train each layer or block in turn; fused: a block with all below it; none: all"
        " at once.",
    )
    block_size: Annotated[Count, _IN_BLOCKS] = Field(default=4, description="Layers in a block.")
    local_loss: Annotated[Literal["head", "reconstruct"], _STACKWISE] = Field(
        default="head",
        description="Loss of a unit below the top; head: the model's own; reconstruct:"
        " plus reconstruction.",
    )
    reconstruct_weight: Annotated[Positive, _RECONSTRUCTS] = Field(
        default=10.0,
        description="Weight of the feature reconstruction, which is added to the loss.",
    )
    cache_activations: bool | None = Field(
        default=None,
        description="Cache the frozen trunk's output for each example; not set: if there are"
        " several epochs.",
    )
    cache_dtype: Annotated[Literal["fp32", "bf16"], _CACHED] = Field(
        default="bf16", description="Dtype of cached activations."
    )
    cache_size: Annotated[Megabytes, SAME_RESULT, _CACHED] = Field(
        default=10000, description="Disk limit for cached activations, in MB."
    )
    end_to_end_scope: Annotated[Literal["stackwise", "rackwise"], _TOGETHER] = Field(
        default="rackwise",
        description="How end_to_end trains: each stack by its own loss (stackwise), or one"
        " loss (rackwise).",
    )
    progressive: ProgressiveConfig = Field(
        default=ProgressiveConfig(), description="Progressive training."
    )
    time_step_masking: bool = Field(
        default=False,
        description="Train on masked tokens (masked diffusion): the later the time step, the"
        " more masks.",
    )
    num_time_steps: Annotated[Count, _MASKED] = Field(
        default=10, description="Number of time steps (mask levels)."
    )
    time_step_bins: Annotated[
        list[Annotated[int, Ge(0)]] | None,
        SplitCommas,
        Allowed('a list of time steps such as "0,1,2"'),
        _MASKED,
    ] = Field(default=None, description="Time steps to use; none: all.")
    time_step_mask_fractions: Annotated[
        dict[Annotated[int, Ge(0)], Share] | None,
        FromJson,
        Allowed('a mapping from time step to a share from 0 to 1, such as {"0": 0.15}'),
        _MASKED,
    ] = Field(
        default=None,
        description="Share of masked tokens by time step, linear in between; none: from 0.15"
        " to 0.9.",
    )
    time_interpretation: Annotated[Literal["depth", "input"], _MASKED] = Field(
        default="depth",
        description="Each unit has its own time step (depth), or each example draws one (input).",
    )
    corruption: Annotated[str, RegisteredName(CORRUPTIONS), _MASKED] = Field(
        default="mask",
        description="What replaces masked tokens; mask: the mask token; uniform: any other token.",
    )
    mask_weighting: Annotated[Literal["inverse", "none"], _MASKED] = Field(
        default="inverse",
        description="Weight of a masked token: 1 / the masked share (inverse, as in MDLM), or"
        " 1 (none).",
    )
    store_all_time_steps: Annotated[bool, _CACHED_STEPS] = Field(
        default=False,
        description="Cache activations of all time steps, not just"
        " {=training.time_step_cache_size}.",
    )
    time_step_cache_size: Annotated[Count, _CACHED_STEPS] = Field(
        default=1, description="Number of time steps whose activations are cached at once."
    )
    quantization_enabled: bool = Field(
        default=False, description="Store finished stacks quantized."
    )
    quantization_type: Annotated[str, RegisteredName(QUANTIZATIONS), _QUANTIZED] = Field(
        default="nf_fp8",
        description="Dtype of finished stacks; nf_fp8: fp8 with one scale per 64 weights.",
    )
    backbone_quantized: bool | None = Field(
        default=None, description="Another name for {=training.quantization_enabled}."
    )
    adapters_full_precision: Annotated[bool, _QLORA] = Field(
        default=True,
        description="Keep the QLoRA matrices of block-wise training in full precision.",
    )
    qlora_enabled: bool = Field(
        default=False,
        description="Block-wise training: train low-rank (QLoRA) matrices next to frozen layers.",
    )
    qlora_rank: Annotated[Count, _QLORA] = Field(
        default=16, description="Rank of the QLoRA matrices of block-wise training."
    )
    qlora_alpha: Annotated[Positive, _QLORA] = Field(
        default=32, description="Scaling of the QLoRA matrices of block-wise training."
    )
    qlora_dropout: Annotated[ShareBelowOne, _QLORA] = Field(
        default=0.0, description="Dropout before the QLoRA matrices of block-wise training."
    )
    qlora_lr: Annotated[Positive | None, _QLORA] = Field(
        default=None,
        description="Learning rate of the QLoRA matrices; none: {=training.learning_rate}.",
    )
    qlora_progressive_enabled: Annotated[bool | None, _QLORA_TRUNK] = Field(
        default=None,
        description="Add QLoRA matrices to the trunk with each new stack; not set: by"
        " {=training.qlora_strategy}.",
    )
    qlora_strategy: Annotated[Literal["simplified", "progressive", "variable"], _QLORA] = Field(
        default="simplified",
        description="QLoRA; simplified: a set per stack; progressive: also in the"
        " trunk; variable: other ranks.",
    )
    qlora_ranks: Annotated[
        dict[Annotated[int, Ge(0)], Count] | None,
        FromJson,
        Allowed('a mapping from stack to rank, such as {"0": 4}'),
        _QLORA,
        _VARIABLE,
    ] = Field(
        default=None,
        description="QLoRA ranks of some stacks, with {=training.qlora_strategy:variable}.",
    )
    cache_mode: Annotated[Literal["stack", "rack"], _CACHED] = Field(
        default="stack",
        description="Activations to cache: of the last frozen stack only (stack), or of all"
        " of them (rack).",
    )
    cache_storage: Annotated[str, RegisteredName(CACHES), SAME_RESULT, _CACHED] = Field(
        default="disk",
        description="Where cached activations are stored.",
    )
    cache_dir: Annotated[PathText | None, SAME_RESULT, _CACHED] = Field(
        default=None, description="Folder for cached activations; none: in the run directory."
    )
    save_stacks: Annotated[bool, SAME_RESULT, _STACKWISE] = Field(
        default=True, description="Save each finished stack."
    )
    save_rack: Annotated[bool, SAME_RESULT, _STACKWISE] = Field(
        default=False,
        description="Save the whole model (the rack) in addition to its stacks.",
    )

    @property
    def qlora(self) -> QLoRA:
        """The `qlora_*` fields as one read-only object."""
        return QLoRA(
            **{name: getattr(self, f"qlora_{name}") for name in QLoRA.__dataclass_fields__}
        )

    @property
    def needed_strategy(self) -> str | None:
        if self.mode is not None:  # one unit after another
            return "progressive"
        return "end_to_end" if self.qlora_enabled or self.trunk_is_quantized else None

    @property
    def hides_tokens(self) -> bool:
        return self.time_step_masking

    @property
    def trains_units_in_turn(self) -> bool:
        """True if the groups of layers train one after another."""
        return self.strategy == "progressive" or (self.strategy == "auto" and self.mode is not None)

    @property
    def holds_half_weights(self) -> bool:
        is_half = self.progressive.new_stack_precision in ("bf16", "fp16")
        return self.trains_units_in_turn and is_half

    @property
    def grows_once(self) -> bool:
        """True if the model grows from its first stack to all stacks in one step."""
        return self.strategy == "progressive" and self.progressive.growth == "once"

    @property
    def trunk_trains(self) -> bool:
        """True if all layers below the group that trains also train."""
        return self.grows_once or self.mode == "fused"

    @property
    def trunk_is_quantized(self) -> bool:
        """True if finished layers are stored in another format than during their training."""
        return self.quantization_enabled or self.backbone_quantized is True

    @property
    def trunk_is_adapted_again(self) -> bool:
        """True if finished layers get more low-rank matrices with each new group of layers."""
        return self.qlora_progressive_enabled is True or self.qlora_strategy == "progressive"

    @property
    def trunk_is_adapted(self) -> bool:
        """True if low-rank matrices train in the frozen layers below the group that trains."""
        adapts = self.qlora_enabled or self.progressive.trunk_strategy == "qlora"
        return self.trains_units_in_turn and adapts

    @property
    def trunk_can_be_cached(self) -> bool:
        """True if the output of the finished layers never changes, and needs no gradients."""
        changes = self.trunk_trains or self.trunk_is_adapted
        return self.trains_units_in_turn and not changes

    @property
    def names_examples(self) -> bool:
        return self.trunk_can_be_cached
