"""The quantum step: binary problems of a training, and the samplers that solve them."""
