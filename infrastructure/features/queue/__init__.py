"""A queue of runs that train one after another; README.md describes the modules."""
