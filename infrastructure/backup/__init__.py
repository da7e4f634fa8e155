"""A content-addressed store of checkpoint versions, and its copies elsewhere. See FORMAT.md."""
