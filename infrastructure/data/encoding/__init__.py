"""Encoding of rows into token ids and a mask of the trained tokens."""
