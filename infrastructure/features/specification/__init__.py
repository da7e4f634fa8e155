"""Classes and functions that the specifications name, for users who assemble a run themselves."""
