# %% [markdown]
# # A model that is trained a stack of layers at a time
#
# A deep model need not train all at once. It can begin with its first layers and grow. Or one block of
# layers trains after the other, and the finished ones only compute. Weights that do not train need no
# gradients and no optimizer, and their output for an example can be computed once and kept. That
# saves memory and time. It also has a price: training block by block reaches a worse loss.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · How it grows
# *once*: the first stack trains, then all stacks do, the new ones beginning as copies of it. Of all
# ways to grow, the evidence favours this one. *stages*: one stack after the other, and only the new
# one trains. Epochs are those of each phase.

# %% tags=["parameters"]
preset = "none"  # @param ["none", "thorough"]
stacks, growth, init, epochs = 2, "once", "copy", 1

settings = {"training.strategy": "progressive", "training.num_epochs": epochs}
settings |= {"training.progressive.target_stacks": stacks, "training.progressive.growth": growth}
settings |= {"training.progressive.init": init}
config = colab.configure(preset, **settings, **session.settings())

# %% [markdown]
# ## 3 · Train
# First you are told the plan: what trains in each phase, for how many steps, in how much memory, with
# embeddings and head counted. Stop the cell, or lose the machine, in any phase: *Run all* goes on there.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
summary = colab.train(config)

# %% [markdown]
# ## 4 · What trained when
# A bar for each phase, the loss in it below. Where the model has grown, it begins worse than it ended.

# %% nbmake={"post_cell_execute": ["assert len(phases) == 2", "assert phases[0]['last_step'] + 1 == phases[1]['first_step']", "assert phases[-1]['last_step'] == summary['steps']", "assert phases[-1]['loss'] > 0"]}
phases = colab.show_stacks(summary["paths"]["run"])

# %% [markdown]
# Each stack lies in a file of its own, and the model is an ordinary Hugging Face folder:

# %% nbmake={"post_cell_execute": ["assert 'stacks/stack_0.safetensors' in files", "assert 'final/config.json' in files"]}
from pathlib import Path

run = Path(summary["paths"]["run"])
files = sorted(str(path.relative_to(run)) for path in [*run.glob("stacks/*"), *run.glob("final/*")])
print(*files, sep="\n")

# %% nbmake={"post_cell_execute": ["assert len(answers) == 1"]}
answers = colab.ask(summary["paths"]["model"], ["Reverse the list: 4, 1, 7"])

# %% [markdown]
# ## 5 · Block by block, and other ways
# In step 2, `{"training.mode": "blockwise", "training.block_size": 2}` in the place of the strategy
# trains one block after the other; `training.local_loss` *reconstruct* with `training.strategy`
# *end_to_end* and `training.end_to_end_scope` *stackwise* trains all of them in each step, the lower
# ones to keep features. `training.quantization_enabled` stores what is finished in 8 bits,
# `training.time_step_masking` hides tokens and has the model say what they were. What goes together
# is said before a run begins. In a terminal: `temper train --strategy progressive`.

# %%
colab.show_report(summary["paths"]["run"])
