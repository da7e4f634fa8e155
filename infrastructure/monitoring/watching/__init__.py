"""Alerts: the rules by which they are raised, and the sinks to which they are sent."""
