"""Training speed on a CPU of Temper, of plain hand-written loops and of TRL, beside what the
machine's matrix products alone would allow: `python -m benchmarks.throughput --data FILE`.
"""
