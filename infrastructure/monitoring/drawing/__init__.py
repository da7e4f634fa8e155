"""Curves, images, tables and pieces of HTML, drawn from plain numbers."""
