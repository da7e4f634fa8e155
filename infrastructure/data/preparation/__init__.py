"""Preparation of data before training: the plan, the pass over all rows, skipped rows, the report.
"""
