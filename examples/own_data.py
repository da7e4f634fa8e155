"""Train a small model on your own rows, and evaluate it.

python examples/own_data.py
"""

import json
from pathlib import Path

import temper

if __name__ == "__main__":
    sums = [(a, b) for a in range(20) for b in range(20)]
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a, b in sums]
    held_out = rows[::10]  # measured, and not trained on
    learnt = [row for row in rows if row not in held_out]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, learnt)))
    Path("held_out.jsonl").write_text("\n".join(map(json.dumps, held_out)))
    summary = temper.train("sums.jsonl", num_epochs=2, batch_size=16)
    print("trained to", summary["paths"]["model"])
    measured = temper.evaluate(summary["paths"]["run"], "held_out.jsonl")
    print("loss", measured.metrics["eval_loss"], "exact", measured.exact_match["all"])
