"""Training decisions as binary optimization problems, each with baselines for comparison."""

from infrastructure.core.optional import import_without

# dimod imports networkx to read its graphs. That takes half of the import time, and no graphs are
# used here.
import_without("dimod", "networkx")
