"""Reading of HDF5 files as training data."""
