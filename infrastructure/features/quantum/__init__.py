"""The quantum step: binary problems of a run, and the samplers that solve them."""
