"""The solution of one problem: in this process, from a file, or in another process."""

from infrastructure.core.optional import import_without

# dimod imports networkx to read its graphs. That takes half of the import time, and no graphs are
# used here.
import_without("dimod", "networkx")
