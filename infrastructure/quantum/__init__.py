"""Problems for samplers, and who answers them."""

from infrastructure.core.optional import import_without

# It reads graphs of networkx, which takes half of its import, and nobody here has one.
import_without("dimod", "networkx")
