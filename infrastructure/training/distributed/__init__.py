"""Training of one run on several processes (ranks), coordinated by rank 0.

Only rank 0 owns the run's directory, handles clocks and signals, and saves and shows results. The
other ranks run the same loop over the same data, take their share of each batch, and hold the same
weights and optimizer.

`group`: how ranks agree, decide and sum. `launch`: the agent that starts the ranks. `members`: how
the ranks find each other. `ranks`: how rank 0 starts and ends the other ranks. `replicate`: the
whole model on each rank. `shard`: a model sharded over the ranks. `checkpoint_storage`: checkpoints
of a sharded model. Only this folder imports `torch.distributed`.
"""
