"""The parts that are still to come, in words for people."""

PARTS = {
    "adapters": "the part on dialogue and multimodal models",
    "extensions": "the part on dialogue and multimodal models",
}
