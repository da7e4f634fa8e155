"""Reading of Excel workbooks as training data: the data format `excel`."""

from infrastructure.core.features import Feature

FEATURE = Feature(
    name="excel",
    plugins={"temper.formats": {"excel": "infrastructure.features.excel.reader:EXCEL"}},
)
