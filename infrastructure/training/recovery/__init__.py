"""What a training does about its own errors; the loop asks and applies."""
