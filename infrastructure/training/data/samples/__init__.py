"""Sample data that comes with the project: instruction examples of several kinds of task."""

from pathlib import Path

SAMPLE_TRAIN = Path(__file__).parent / "train.jsonl"
SAMPLE_HELDOUT = Path(__file__).parent / "heldout.jsonl"
