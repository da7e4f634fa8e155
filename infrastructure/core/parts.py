"""The parts that are still to come, in words for people."""

PARTS = {
    "extensions": "the part on dialogue and multimodal models",
}
