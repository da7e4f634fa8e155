"""Alerts: the rules, when a number raises one, and where alerts are sent."""
