"""Measurement of the settings that make a run fastest on this machine."""
