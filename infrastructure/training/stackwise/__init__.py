"""Training a deep model a stack of layers at a time: its parts, its phases, what is cached."""
