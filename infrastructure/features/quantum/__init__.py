"""The quantum step: training decisions as binary optimization problems, and samplers for them."""
