"""dimod samplers that solve binary quadratic models, by name."""
