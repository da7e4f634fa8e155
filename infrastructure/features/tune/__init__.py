"""Measuring which settings make a run fastest on this machine; README.md is the map."""
