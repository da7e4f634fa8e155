"""The parts that are still to come, in words for people."""

PARTS = {
    "E": "part E (the quantum step)",
    "stackwise": "the part on stack-wise training",
    "adapters": "the part on dialogue and multimodal models",
    "extensions": "part E (quantum) and the part on dialogue and multimodal models",
}
