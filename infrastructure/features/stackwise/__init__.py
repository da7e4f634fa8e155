"""Block-wise training: layers are grouped into units, which train in turn or each on its own."""
