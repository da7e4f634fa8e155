"""Does a model of text see with the extension `multimodal`? It is asked which colour the squares of
a picture have, and how many there are: rows that only the picture answers.

Both arms are the same model with the same tower, projector and steps, so with as many parameters;
in one of them every picture is blank. What was trained on pictures is measured once more with the
pictures exchanged between the rows. Before, the model of text has learnt the questions and answers
from sentences; the tower is new and stays as it is.

    python -m benchmarks.multimodal_extension [--seeds 3] [--epochs 8]

Prints one JSON line. Chance is one of four.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import EmbeddedModelConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.vision_tower.config import MultimodalConfig
from infrastructure.models.lora import count_parameters
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.model_adapters.multimodal_adapter import MultimodalModelAdapter

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 30),
    "blue": (30, 30, 220),
    "yellow": (230, 220, 30),
}
NUMBERS = ("one", "two", "three", "four")
QUESTIONS = ("Which colour is it?", "How many are there?")
CHANCE = 1 / len(COLOURS)
NUM_HELD_OUT = 200
SIDE = 16  # pixels of a picture; a square is in a quarter of it
SHAPE = EmbeddedModelConfig(
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    intermediate_size=128,
    vocab_size=300,
    max_positions=96,
)


@dataclass(frozen=True)
class Accuracy:
    """Shares of held-out rows that are answered rightly, and the parameters of both arms."""

    seeing: float
    exchanged: float
    blank: float
    num_parameters: tuple[int, int]


def scene(draw: random.Random) -> tuple[str, str, Image.Image]:
    """A colour, a number, and so many squares of that colour in quarters of a noisy picture."""
    colour, number = draw.choice([*COLOURS]), draw.randrange(len(NUMBERS))
    image = Image.new("RGB", (SIDE, SIDE))
    image.putdata([(draw.randrange(90, 130),) * 3 for _ in range(SIDE * SIDE)])
    half = SIDE // 2
    for quarter in draw.sample(range(len(NUMBERS)), number + 1):
        x, y = quarter % 2 * half + 1, quarter // 2 * half + 1
        image.paste(COLOURS[colour], (x, y, x + half - 2, y + half - 2))
    return colour, NUMBERS[number], image


def write_rows(folder: Path, count: int, seed: int) -> None:
    """The same scenes as sentences, as pictures, and with blank pictures in their place."""
    draw = random.Random(seed)
    (folder / "pictures").mkdir(parents=True)
    Image.new("RGB", (SIDE, SIDE), (110, 110, 110)).save(folder / "pictures" / "blank.png")
    kinds: dict[str, list[str]] = {"text": [], "seeing": [], "blank": []}
    for number in range(count):
        colour, amount, image = scene(draw)
        image.save(folder / "pictures" / f"{number}.png")
        which = number % 2
        row = {"prompt": QUESTIONS[which], "completion": (colour, amount)[which]}
        sentence = f"There are {amount} squares, which are {colour}. {row['prompt']}"
        kinds["text"].append(json.dumps({**row, "prompt": sentence}))
        kinds["seeing"].append(json.dumps({"image": f"pictures/{number}.png", **row}))
        kinds["blank"].append(json.dumps({"image": "pictures/blank.png", **row}))
    for kind, lines in kinds.items():
        (folder / f"{kind}.jsonl").write_text("\n".join(lines))


def write_tower(folder: Path) -> None:
    """A new vision model, whose features nobody has trained, with its image processor."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config = CLIPVisionConfig(num_hidden_layers=2, image_size=SIDE, patch_size=8, **sizes)
    CLIPVisionModel(config).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)


def trainer_of(
    kind: str, model: ModelConfig, seed: int, epochs: int, folder: Path, **settings: object
) -> EnhancedTrainer:
    """A training on the rows of one kind."""
    return EnhancedTrainer(
        model,
        TrainingConfig(
            seed=seed,
            batch_size=32,
            num_epochs=epochs,
            learning_rate=3e-3,
            warmup_steps=10,
            mixed_precision=False,
            validation_interval=None,
            **settings,
        ),
        DataConfig(
            path=str(folder / f"{kind}.jsonl"),
            eval_path=str(folder / "held_out" / f"{kind}.jsonl"),
            max_length=96,
            num_workers=0,
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
    )


def held_out(trainer: EnhancedTrainer) -> list[TokenizedExample]:
    return [one for batch in trainer.initialize_data().evaluation_batches(32) for one in batch]


def share_right(trainer: EnhancedTrainer, examples: Sequence[TokenizedExample]) -> float:
    """The share of rows of whose answer each token is the likeliest: so each is what the model
    would write itself."""
    adapter, model = trainer.adapter, trainer.initialize_model().eval()
    assert isinstance(adapter, MultimodalModelAdapter)
    adapter.metrics = {"right": lambda logits, ids: (logits.argmax(-1) == ids).float()}
    right = 0
    with torch.no_grad():
        for example in examples:
            sums = adapter.sum_metrics(model, adapter.prepare_batch([example]))
            total, count = sums["right"]
            right += total == count
    return right / len(examples)


def exchanged(examples: Sequence[TokenizedExample], seed: int) -> list[TokenizedExample]:
    """The same rows, their pictures in another order."""
    shown = [example.pictures for example in examples]
    random.Random(seed).shuffle(shown)
    return [replace(e, pictures=other) for e, other in zip(examples, shown, strict=True)]


def measure(folder: Path, seed: int, *, rows: int, epochs: int) -> Accuracy:
    """Both arms of one seed, in an empty folder."""
    write_rows(folder, rows, seed)
    write_rows(folder / "held_out", NUM_HELD_OUT, seed + 1000)
    write_tower(folder / "tower")
    text = trainer_of("text", ModelConfig(embedded=SHAPE), seed, 4, folder)
    text.train()
    text.adapter.save(folder / "start")
    arms = {}
    for kind in ("seeing", "blank"):
        arms[kind] = trainer_of(
            kind,
            ModelConfig(name=str(folder / "start")),
            seed,
            epochs,
            folder,
            enabled_extensions=["multimodal"],
            multimodal=MultimodalConfig(vision_tower=str(folder / "tower")),
            extension_learning_rate=1e-2,
        )
        arms[kind].train()
    examples = held_out(arms["seeing"])
    counts = [count_parameters(arm.initialize_model()).total for arm in arms.values()]
    return Accuracy(
        share_right(arms["seeing"], examples),
        share_right(arms["seeing"], exchanged(examples, seed)),
        share_right(arms["blank"], held_out(arms["blank"])),
        (counts[0], counts[1]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as name:
            results.append(
                measure(Path(name) / "rows", seed, rows=options.rows, epochs=options.epochs)
            )
    print(
        json.dumps(
            {
                "benchmark": "multimodal_extension",
                "rows": options.rows,
                "chance": CHANCE,
                "num_parameters": results[0].num_parameters,
                "seeing": [one.seeing for one in results],
                "exchanged": [one.exchanged for one in results],
                "blank": [one.blank for one in results],
                "mean_gain": statistics.fmean(one.seeing - one.blank for one in results),
                "least_gain": min(one.seeing - one.blank for one in results),
            }
        )
    )


if __name__ == "__main__":
    main()
