"""A content-addressed store of checkpoints, and its backup copies elsewhere. See FORMAT.md."""
