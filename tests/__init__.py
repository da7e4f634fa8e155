"""A regular package: IPython 7 puts one of this name on the path, which would win over a folder."""
