"""One run on several processes: every rank runs the same loop, and rank 0 decides.

Only rank 0 owns the run's directory, handles clocks and signals, and saves and shows results. The
other ranks run the same loop over the same data, take their share of each batch, and hold the same
weights and optimizer.

`group`: how ranks agree, decide and sum. `launch`: the agent that starts them; `members`: how they
find each other; `ranks`: rank 0's side of that. `replicate`: the whole model on each rank; `shard`:
a model sharded over them, and `checkpoint_storage` its checkpoints. Only this folder imports
`torch.distributed`.
"""
