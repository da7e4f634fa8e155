"""Who answers a question: dimod samplers, by name."""
