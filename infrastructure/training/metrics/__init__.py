"""Where the numbers of a run go: console, JSON lines, CSV, TensorBoard, report page."""
