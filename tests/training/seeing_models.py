"""Tiny models of image and text, one of each family, and rows that only pictures answer."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Idefics3Config,
    LlamaConfig,
    LlavaConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
)

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{% if part['type'] == 'image' %}MARK"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TEXT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
GEMMA_MARKS = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")
WIDTH = 32
TOWER = {
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
TEXT = {
    "vocab_size": 400,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def widened(sizes: dict[str, Any], width: int) -> dict[str, Any]:
    """The same parts `width` wide; heads stay as they are."""
    heads = width * sizes["num_attention_heads"] // sizes["hidden_size"]
    of_text = {"num_key_value_heads": heads} if "num_key_value_heads" in sizes else {}
    more = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": heads}
    return {**sizes, **more, **of_text}


def tiny_tokenizer(*marks: str, **named: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with these special tokens beside its end token.

    Args:
        named: those that the tokenizer has by name, such as `image_token`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = ["user: assistant: Which colour is it? red green blue"] * 9
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=[END])
    tokenizer.train_from_iterator(words, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, extra_special_tokens=named
    )
    fast.add_special_tokens({"additional_special_tokens": list(marks)})
    return fast


def llava_processor() -> Any:
    """One that makes four tokens of any picture."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = tiny_tokenizer("<image>")
    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    tokenizer.chat_template = TEMPLATE.replace("MARK", "<image>")
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )


def save_llava(folder: Path, width: int = WIDTH) -> Path:
    """A Llava of two layers of each part, with its processor."""
    processor = llava_processor()
    return _saved(folder, llava_config(processor.tokenizer, width), processor)


def llava_config(tokenizer: PreTrainedTokenizerFast, width: int = WIDTH) -> LlavaConfig:
    """Its pictures have 16 x 16 pixels."""
    return LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **widened(TOWER, width)},
        text_config={"model_type": "llama", **widened(TEXT, width)},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )


def save_qwen_vl(folder: Path, width: int = WIDTH) -> Path:
    """A Qwen2-VL: as many tokens as a picture has patches, positions in three dimensions."""
    from transformers import Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    tokenizer = tiny_tokenizer(*QWEN_MARKS)
    sizes = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
    limits = {"shortest_edge": 64, "longest_edge": 1024}
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes, size=limits),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**sizes, size=limits),
        chat_template=TEMPLATE.replace("MARK", mark),
    )
    return _saved(folder, qwen_vl_config(tokenizer, width), processor)


def qwen_vl_config(tokenizer: PreTrainedTokenizerFast, width: int = WIDTH) -> Qwen2VLConfig:
    """Its patches have 4 x 4 pixels, and 2 x 2 of them are a token."""
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in QWEN_MARKS}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    return Qwen2VLConfig(
        vision_config={
            "depth": 2,
            "embed_dim": width,
            "hidden_size": width,
            "num_heads": width // 16,
            "mlp_ratio": 2,
            "patch_size": 4,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
        },
        text_config={
            **widened(TEXT, width),
            "rope_parameters": rope,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def save_idefics3(folder: Path, width: int = WIDTH) -> Path:
    """What SmolVLM is built of: a picture cut into tiles, each with its row and column named."""
    from transformers import Idefics3Processor
    from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor

    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer = tiny_tokenizer(
        "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *tiles
    )
    processor = Idefics3Processor(
        Idefics3ImageProcessor(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}, do_image_splitting=True
        ),
        tokenizer,
        image_seq_len=1,
        chat_template=TEMPLATE.replace("MARK", "<image>"),
    )
    return _saved(folder, idefics3_config(tokenizer, width), processor)


def idefics3_config(tokenizer: PreTrainedTokenizerFast, width: int = WIDTH) -> Idefics3Config:
    """Its tiles have 16 x 16 pixels, and one token each."""
    return Idefics3Config(
        vision_config=widened(TOWER, width),
        text_config=LlamaConfig(**widened(TEXT, width), pad_token_id=0),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )


def gemma3_processor() -> Any:
    """One whose mark of a picture is not the token that the model puts its features in place of."""
    from transformers import Gemma3Processor
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    marks = dict(zip(("image_token", "boi_token", "eoi_token"), GEMMA_MARKS, strict=True))
    tokenizer = tiny_tokenizer(**marks)
    return Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": 16, "width": 16}),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template=TEMPLATE.replace("MARK", "<start_of_image>"),
    )


def save_gemma3(folder: Path, width: int = WIDTH) -> Path:
    """A Gemma 3: the tokens of a picture attend to each other in both directions."""
    processor = gemma3_processor()
    image, begin, end = processor.tokenizer.convert_tokens_to_ids([*GEMMA_MARKS])
    config = Gemma3Config(
        vision_config=widened(TOWER, width),
        text_config={**widened(TEXT, width), "head_dim": 16, "query_pre_attn_scalar": 16},
        mm_tokens_per_image=4,
        image_token_index=image,
        boi_token_index=begin,
        eoi_token_index=end,
    )
    return _saved(folder, config, processor)


def _saved(folder: Path, config: Any, processor: Any) -> Path:
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def picture(colour: str, number: int = 0, size: tuple[int, int] = (20, 18)) -> Image.Image:
    """A picture of one colour with a little noise: each number another one."""
    noise = np.random.default_rng(number).integers(-15, 15, (size[1], size[0], 3))
    pixels = np.clip(np.array(COLOURS[colour]) + noise, 0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image) -> bytes:
    """As PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_colours(folder: Path, count: int = 24, kind: str = "path") -> Path:
    """Rows that ask for the colour of a picture, given as a path, base64 text or a data URL."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        colour = [*COLOURS][number % 3]
        content = encoded(picture(colour, number))
        text = base64.b64encode(content).decode()
        if kind == "path":
            (folder / "pictures").mkdir(exist_ok=True)
            (folder / "pictures" / f"{number}.png").write_bytes(content)
        given = {
            "path": f"pictures/{number}.png",
            "base64": text,
            "url": f"data:image/png;base64,{text}",
        }[kind]
        rows.append({"image": given, "question": "Which colour is it?", "answer": colour})
    file = folder / "colours.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def save_text_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A Llama that reads text only, with a chat template that takes texts only."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    values = {**TEXT, "pad_token_id": 0, **changes}
    AutoModelForCausalLM.from_config(LlamaConfig(**values)).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEXT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def save_tower(folder: Path, kind: str = "clip", **changes: Any) -> Path:
    """A vision model of two layers with its image processor: a picture has four patches."""
    import transformers
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    size = {"height": 16, "width": 16}
    cropped = {"size": {"shortest_edge": 16}, "crop_size": size}
    text = {"vocab_size": 99, **{k: TOWER[k] for k in ("hidden_size", "num_hidden_layers")}}
    text |= {"intermediate_size": 64, "num_attention_heads": 2}
    classes, values, image_processor = {
        "clip": ("CLIPVision", {}, CLIPImageProcessorPil(**cropped)),
        "clip of both": ("CLIP", {"text_config": text}, CLIPImageProcessorPil(**cropped)),
        "siglip": ("SiglipVision", {}, SiglipImageProcessorPil(size=size)),
        "vit": ("ViT", {}, ViTImageProcessorPil(size=size)),
        "dinov2": ("Dinov2WithRegisters", {}, BitImageProcessorPil(**cropped)),
    }[kind]
    shape = {**TOWER, **changes}
    given = {"vision_config": shape, **values} if values else shape
    config = getattr(transformers, f"{classes}Config")(**given)
    torch.manual_seed(1)
    getattr(transformers, f"{classes}Model")(config).save_pretrained(folder)
    image_processor.save_pretrained(folder)
    return folder
