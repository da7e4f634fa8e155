"""Reading rows: which file it is, and a reader for each format."""
