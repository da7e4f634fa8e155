# %% [markdown]
# # Train a model one stack of layers at a time
#
# A deep model does not have to train all at once. It can start with its first layers and grow, or
# it can train one block of layers after the other while the finished blocks are frozen. Frozen
# weights need no gradients and no optimizer, and their output for an example can be computed once
# and cached. That saves memory and time. It also has a price: training block by block reaches a
# higher loss.

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · Choose how the model grows
# - *once*: the first stack trains, then all stacks train. New stacks start as copies of the first.
#   Of all ways to grow a model, this one has the best evidence.
# - *stages*: one stack trains after another. In each phase, only the new stack trains.
#
# `epochs` counts for each phase.

# %% tags=["parameters"]
preset = "none"  # @param ["none", "thorough"]
stacks, growth, init, epochs = 2, "once", "copy", 1

settings = {"training.strategy": "progressive", "training.num_epochs": epochs}
settings |= {"training.progressive.target_stacks": stacks, "training.progressive.growth": growth}
settings |= {"training.progressive.init": init}
config = colab.configure(preset, **settings, **session.settings())

# %% [markdown]
# ## 3 · Train
# Temper first prints the plan: what trains in each phase, for how many steps, and in how much
# memory, including embeddings and head. If you stop the cell or lose the machine, in any phase,
# *Run all* resumes there.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
summary = colab.train(config)

# %% [markdown]
# ## 4 · Look at the model
# Each stack is in its own file, and the model is an ordinary Hugging Face folder:

# %% nbmake={"post_cell_execute": ["assert 'stacks/stack_0.safetensors' in files", "assert 'final/config.json' in files"]}
from pathlib import Path

run = Path(summary["paths"]["run"])
files = sorted(str(path.relative_to(run)) for path in [*run.glob("stacks/*"), *run.glob("final/*")])
print(*files, sep="\n")

# %% nbmake={"post_cell_execute": ["assert len(answers) == 1"]}
answers = colab.ask(summary["paths"]["model"], ["Reverse the list: 4, 1, 7"])

# %% [markdown]
# ## 5 · Try block-wise training and other options
# Change the settings in step 2:
#
# - To train one block after the other, use
#   `{"training.mode": "blockwise", "training.block_size": 2}` instead of the strategy.
# - To train all stacks in each step, so that the lower ones learn to keep features, set
#   `training.local_loss` to *reconstruct*, `training.strategy` to *end_to_end* and
#   `training.end_to_end_scope` to *stackwise*.
# - To store finished layers in 8 bits, set `training.quantization_enabled`.
# - To hide tokens and train the model to restore them, set `training.time_step_masking`.
#
# If settings do not work together, Temper says so before the run starts. In a terminal, run
# `temper train --strategy progressive`.

# %% [markdown]
# The report lists the phases. When the model grows, its loss jumps above the level that it had
# reached in the previous phase.

# %%
colab.show_report(summary["paths"]["run"])
