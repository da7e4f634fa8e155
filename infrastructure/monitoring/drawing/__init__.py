"""Curves, images, tables and pieces of HTML, from plain numbers."""
