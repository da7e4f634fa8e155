"""Alerts: the rules, when a number becomes one, and who is told."""
