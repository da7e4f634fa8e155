"""Curves, pictures, tables and pieces of HTML, from plain numbers."""
