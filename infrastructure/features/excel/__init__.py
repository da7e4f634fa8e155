"""Reading of Excel workbooks as training data."""
