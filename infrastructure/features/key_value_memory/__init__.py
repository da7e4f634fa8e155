"""A key-value memory that a model reads by attention: trained slots and past tokens."""
