"""One training on several processes: every rank runs the one loop, and rank 0 decides.

Rank 0 is the run: its directory, its clocks and signals, what is saved and what is shown are its
alone. The others run the same loop over the same data, take their share of each batch, and hold the
same weights and optimizer.

`group`: how ranks agree, decide and sum. `launch`: the agent that starts them; `members`: how they
find each other; `ranks`: rank 0's side of that. `replicate`: all weights on each rank; `shard`: a
model spread over them, and `checkpoint_storage` its checkpoints. This folder alone imports
`torch.distributed`.
"""
