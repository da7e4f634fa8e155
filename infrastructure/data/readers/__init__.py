"""Reading of rows: detection of file types, and a reader for each format."""
