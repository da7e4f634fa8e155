"""Training of a deep model one stack of layers at a time: its parts, its phases and its caches."""
