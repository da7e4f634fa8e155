"""Classes and functions of the specifications for users who assemble a run themselves."""
