"""Reading of HDF5 files as training data: the data format `hdf5`."""

from infrastructure.core.features import Feature

FEATURE = Feature(
    name="hdf5",
    plugins={"temper.formats": {"hdf5": "infrastructure.features.hdf5.reader:HDF5"}},
)
