"""A text model with an added vision encoder: transformers' Llava, assembled from its parts.

Method: Liu et al. 2023, arXiv 2304.08485, with the two-layer projector of Llava 1.5. The vision
encoder's features of an image (its second-to-last hidden states) are projected to the width of the
text model's embeddings, and replace the embeddings of the image's tokens.

There are no custom hooks: the result is an ordinary `LlavaForConditionalGeneration`. It is saved,
loaded, exported and used for generation like any other Llava.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from infrastructure.core.checksums import text_hash
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.features.vision_tower.checks import SUCH_AS, check_tower
from infrastructure.features.vision_tower.config import MULTIMODAL
from infrastructure.models.model_change import ModelChange
from infrastructure.models.model_inputs import (
    PROBE_ERRORS,
    PROJECTOR,
    language_model,
    logits_of,
    probing,
    relative_difference,
    tolerance,
)
from infrastructure.models.saved_model import (
    ModelSource,
    SourceKind,
    weight_files,
    weights_sha256,
)
from infrastructure.models.source import find_source
from infrastructure.models.transformers_backend import (
    SEEING,
    LoadOptions,
    class_names,
    hub_arguments,
    load_any_config,
    load_tokenizer,
    load_weights,
    shortened,
)
from infrastructure.models.vocabulary import add_row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

IMAGE_TOKEN = "<image>"
# Encoder weights that its hidden states do not depend on. They may be missing.
BEHIND_THE_FEATURES = ("pooler", "head")
PROBED_SIZES = ((40, 30), (30, 50))  # width and height of test images for the processor
NUM_PROBED = 8  # number of tokens in the comparison of the models
# Text models' chat templates read a message's text. Users of the finished model pass messages in
# parts, and these lines convert them to texts.
PARTS_AS_TEXT = (
    "{%%- set seen = namespace(messages=[]) -%%}{%%- for message in messages -%%}"
    "{%%- if message.content is not string and message.content is iterable -%%}"
    "{%%- set spelled = namespace(text='') -%%}{%%- for part in message.content -%%}"
    "{%%- set spelled.text = spelled.text + ('%s' if part.type == 'image' else part.text) -%%}"
    "{%%- endfor -%%}"
    "{%%- set seen.messages = seen.messages + [dict(message, content=spelled.text)] -%%}"
    "{%%- else -%%}{%%- set seen.messages = seen.messages + [message] -%%}{%%- endif -%%}"
    "{%%- endfor -%%}{%%- set messages = seen.messages -%%}"
)


@dataclass(frozen=True)
class VisionTower:
    """A vision encoder whose configuration is loaded, but not its weights.

    Attributes:
        source: where it is loaded from.
        config: the configuration of the vision part.
        image_processor: converts images to pixels, all of one size.
        num_features: feature vectors per image, before any is dropped.
        num_patches: number of feature vectors that are of image patches.
        patch_size: width of a patch, in pixels.
        layer: index of the hidden state that contains the features.
    """

    source: ModelSource
    config: "PreTrainedConfig"
    image_processor: Any
    num_features: int
    num_patches: int
    patch_size: int
    layer: int

    @property
    def strategy(self) -> str:
        """The name of Llava's feature selection: "default" drops the first vector, "full" drops
        none.
        """
        return "default" if self.num_features > self.num_patches else "full"


class AddedTower(ModelChange):
    """The change that adds the vision encoder `name` to a text model, with a new projector.

    Attributes:
        tower, made: the vision encoder, and the processor; both exist once `processor` is called.
    """

    makes_processor = True
    trains_in_full = (PROJECTOR,)
    tower: VisionTower
    made: Any

    def __init__(self, name: str) -> None:
        self.name = name

    def check_source(self, source: ModelSource, name: str) -> None:
        if source.kind not in (SourceKind.FOLDER, SourceKind.HUB):
            is_lora = source.kind is SourceKind.LORA_FOLDER
            reason = phrase("vision_tower.is_unmerged_lora") if is_lora else "is not one"
            raise InputError("vision_tower.needs_text_model", name=name, reason=reason)

    def check_base(self, base: ModelSource, options: LoadOptions, name: str) -> None:
        check_text_only(load_any_config(base, options), name)

    def processor(self, base: ModelSource, options: LoadOptions) -> Any:
        self.tower = find_tower(self.name, options)
        self.made = make_processor(load_tokenizer(base, options), self.tower)
        return self.made

    def apply(
        self, model: torch.nn.Module, tokenizer: object, options: LoadOptions, *, may_grow: bool
    ) -> torch.nn.Module:
        return put_together(model, self.tower, self.made, options)

    def facts(self) -> JsonObject:
        return {"second_base": tower_facts(self.tower)}

    def template(self, template: str | None, processor: Any) -> str | None:
        return template_for_parts(template, processor.image_token)


def change(config: Any) -> AddedTower | None:
    """Return the change to the model that the extension `multimodal` makes."""
    if not config.training.enables(MULTIMODAL):
        return None
    name = config.training.multimodal.vision_tower
    if name is None:
        raise InputError("vision_tower.not_set")
    return AddedTower(name)


def find_tower(name: str, options: LoadOptions) -> VisionTower:
    """Find a vision encoder, and test it on the meta device, without weights.

    Raises:
        ValueError: it is missing, is not a vision model, or has no image processor.
    """
    source = tower_source(name)
    config = load_any_config(source, options)
    config = getattr(config, "vision_config", config)
    if not hasattr(config, "patch_size") or not hasattr(config, "image_size"):
        raise InputError(
            "vision_tower.without_patches",
            location=source.location,
            model_type=config.model_type,
        )
    image_processor = load_image_processor(source, options)
    pixels = _pixels(source, image_processor)
    states = _hidden_states(source, config, pixels)
    layer = -2 if len(states) > 2 else -1
    size = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    num_patches = (pixels.shape[-2] // size) * (pixels.shape[-1] // size)
    features = states[layer]
    if features.ndim != 3 or features.shape[1] < num_patches or num_patches == 0:
        raise InputError(
            "vision_tower.shape_of_features",
            location=source.location,
            shape=list(features.shape),
            num_patches=num_patches,
            remedy=phrase(SUCH_AS),
        )
    return VisionTower(source, config, image_processor, features.shape[1], num_patches, size, layer)


def tower_source(name: str) -> ModelSource:
    """Return where a vision encoder is loaded from, without reading its weights.

    Raises:
        ValueError: it is not found, or is not a folder of a transformers model.
    """
    check_tower(name)
    # model.revision is that of the text model, which is another repository
    return replace(find_source(name), revision="main")


def load_image_processor(source: ModelSource, options: LoadOptions) -> Any:
    """Load the image processor of a vision encoder.

    Raises:
        ValueError: there is none, or it cannot be loaded.
    """
    require("PIL", "data.decode_images")
    # not by the name that the package exports, which needs torchvision
    auto = require(
        "transformers.models.auto.image_processing_auto", "vision_tower.load_image_processor"
    )
    # of the two kinds the one without torchvision, so that all machines see the same pixels
    try:
        return auto.AutoImageProcessor.from_pretrained(
            source.location, backend="pil", **hub_arguments(source, options)
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = shortened(" ".join(str(error).split()))
        raise InputError(
            "vision_tower.image_processor_not_loaded",
            location=source.location,
            reason=reason,
        ) from error


def _pixels(source: ModelSource, image_processor: Any) -> torch.Tensor:
    """Return the vision encoder's input for a test image, (1, channels, height, width).

    Raises:
        ValueError: the input's shape depends on the size of the image.
    """
    images = require("PIL.Image", "data.decode_images")
    made = [
        image_processor([images.new("RGB", size)], return_tensors="pt")["pixel_values"]
        for size in PROBED_SIZES
    ]
    if len({tuple(pixels.shape) for pixels in made}) > 1 or made[0].ndim != 4:
        raise InputError("vision_tower.image_size_varies", location=source.location)
    return made[0]


def _hidden_states(
    source: ModelSource, config: "PreTrainedConfig", pixels: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the hidden states of a vision encoder on the meta device, for their shapes."""
    transformers = require("transformers", "models.load_model")
    try:
        with torch.device("meta"):
            tower = transformers.AutoModel.from_config(config)
        output = tower(pixels.to("meta"), output_hidden_states=True, return_dict=True)
        return tuple(output.hidden_states)
    except (*PROBE_ERRORS, ImportError) as error:
        reason = shortened(" ".join(str(error).split()))
        raise InputError(
            "vision_tower.probe_failed",
            location=source.location,
            reason=reason,
            remedy=phrase(SUCH_AS),
        ) from error


def check_text_only(config: "PreTrainedConfig", name: str) -> None:
    """Raise if a model already reads images.

    Raises:
        ValueError: the model reads images.
    """
    saved_as = (getattr(config, "architectures", None) or [""])[0]
    if hasattr(config, "vision_config") or saved_as in class_names(SEEING):
        raise InputError(
            "vision_tower.model_reads_images",
            name=name,
            model_class=saved_as or config.model_type,
        )


def make_processor(tokenizer: "PreTrainedTokenizerBase", tower: VisionTower) -> Any:
    """Create Llava's processor from a text model's tokenizer and the encoder's image processor.

    Raises:
        ValueError: the tokenizer splits the image token.
    """
    transformers = require("transformers", "models.load_processor")
    mark = IMAGE_TOKEN
    if mark not in tokenizer.get_vocab():
        added = transformers.AddedToken(mark, special=True, normalized=False)
        tokenizer.add_tokens([added], special_tokens=True)
    ids = tokenizer(f"a{mark}b", add_special_tokens=False)["input_ids"]
    if ids.count(tokenizer.convert_tokens_to_ids(mark)) != 1:
        raise InputError("vision_tower.image_token_is_split", token=mark)
    return transformers.LlavaProcessor(
        image_processor=tower.image_processor,
        tokenizer=tokenizer,
        patch_size=tower.patch_size,
        vision_feature_select_strategy=tower.strategy,
        num_additional_image_tokens=tower.num_features - tower.num_patches,
        image_token=mark,
        chat_template=tokenizer.chat_template,
    )


def template_for_parts(template: str | None, mark: str) -> str | None:
    """Extend a text model's chat template to messages that consist of text and image parts."""
    if template is None:
        return None
    lines = PARTS_AS_TEXT % mark.replace("\\", "\\\\").replace("'", "\\'")
    return template if template.startswith(lines) else lines + template


def put_together(
    text: torch.nn.Module, tower: VisionTower, processor: Any, options: LoadOptions
) -> torch.nn.Module:
    """Assemble a Llava from a loaded text model and a vision encoder, sharing the text weights.

    The new projector is initialized with torch's global random generator. Seed it before the call.

    Raises:
        ValueError: for a test text, Llava computes other logits than the text model.
    """
    transformers = require("transformers", "models.load_model")
    modeling = require("transformers.models.llava.modeling_llava", "models.load_model")
    mark_id = int(processor.image_token_id)
    name = str(language_model(text).config.name_or_path)
    add_row(text, mark_id)
    base, head = cast(Any, text).base_model, language_model(text).get_output_embeddings()
    _untie_where_llava_cannot(text, base)
    config = transformers.LlavaConfig(
        vision_config=tower.config,
        text_config=cast(Any, text).config,
        image_token_index=mark_id,
        image_seq_length=tower.num_features - (tower.strategy == "default"),
        vision_feature_layer=tower.layer,
        vision_feature_select_strategy=tower.strategy,
    )
    with torch.device("meta"):
        model = transformers.LlavaForConditionalGeneration(config)
    kind = type(model.model.language_model)
    is_plain = isinstance(head, torch.nn.Linear) and head.bias is None
    if type(base) is not kind or not is_plain:
        raise InputError(
            "vision_tower.text_model_not_llava_like", name=name, model_class=type(text).__name__
        )
    with torch.device(options.device):
        projector = modeling.LlavaMultiModalProjector(config)
    model.model.language_model = base
    model.model.vision_tower = _load_tower(tower, options)
    model.model.multi_modal_projector = projector.to(options.dtype)
    model.lm_head = head
    model.generation_config = cast(Any, text).generation_config
    config.dtype = options.dtype
    _check_same_text(text, model, name)
    return cast(torch.nn.Module, model)


def _untie_where_llava_cannot(text: torch.nn.Module, base: Any) -> None:
    """Give the model its own output layer if Llava cannot tie it.

    Llava can tie its output layer only to an embedding called `embed_tokens`. With another name
    (GPT-2's), the output layer gets its own weight with the same values.
    """
    table = base.get_input_embeddings()
    head: Any = language_model(text).get_output_embeddings()
    is_tied = head is not None and head.weight is table.weight
    if is_tied and getattr(base, "embed_tokens", None) is not table:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        cast(Any, text).config.tie_word_embeddings = False


def _load_tower(tower: VisionTower, options: LoadOptions) -> torch.nn.Module:
    if tower.source.kind is SourceKind.FOLDER:
        weight_files(tower.source.folder)
    model, info = load_weights("AutoModel", tower.source, tower.config, options)
    missing = {
        name
        for name in info["missing_keys"]
        if not any(part in BEHIND_THE_FEATURES for part in name.split("."))
    }
    if missing:
        raise InputError(
            "vision_tower.weights_lack_tensors",
            location=tower.source.location,
            count=len(missing),
            name=min(missing),
        )
    return model


def _check_same_text(text: torch.nn.Module, model: torch.nn.Module, name: str) -> None:
    table = language_model(text).get_input_embeddings().weight
    ids = torch.arange(NUM_PROBED, device=table.device)[None] % table.shape[0]
    with torch.no_grad(), probing(text), probing(model):
        before, after = logits_of(text(input_ids=ids)), logits_of(model(input_ids=ids))
    difference = relative_difference(after, before)
    if difference > tolerance(before.dtype):
        raise InputError(
            "vision_tower.text_logits_differ",
            name=name,
            difference=difference,
            model_class=type(text).__name__,
        )


def tower_facts(tower: VisionTower) -> JsonObject:
    """Return hashes of the vision encoder's weights and of its image processor."""
    facts: JsonObject = {"processor": text_hash(tower.image_processor.to_dict())}
    if tower.source.kind is SourceKind.FOLDER:
        return {**facts, "sha256": weights_sha256(weight_files(tower.source.folder))}
    return {**facts, "revision": getattr(tower.config, "_commit_hash", None)}
