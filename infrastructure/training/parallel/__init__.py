"""One training on several processes: a leader that decides everything, followers that compute.

The leader is the run as it is with one process: position, hooks, optimizer, scheduler, scaler,
checkpoints and signals are its alone. For each optimizer step it gives every follower the weights
and a share of the batch; forward and backward are done by all at once, gradients are summed onto
the leader, which goes on as ever. So nothing has to be agreed on, a run goes on with any number of
processes, and a follower holds neither optimizer nor anything that could be lost.

`membership`: who is there, and how they find each other. `messages`: what is said, in JSON and
safetensors. `exchange`: weights and gradients, by torch.distributed. `team`: the leader's side;
`follower`: the others'.
"""
