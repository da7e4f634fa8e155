# %% [markdown]
# # Watch a training, then make it faster
#
# The first half trains in a process of its own and looks on from here. The second half measures
# which settings train this model fastest on this machine, and how high the learning rate may be.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% tags=["parameters"]
preset = "quick"  # @param ["quick", "none", "thorough", "small_memory"]

config = colab.configure(preset, **session.settings())

# %% [markdown]
# ## 2 · Watch
# The dashboard is a page of its own that follows the newest run: progress, curves, the machine,
# alerts, and what of the work is safe. In a terminal it is `temper dashboard`, or `temper watch`.
# There is nothing to see yet; it fills when the next cell trains.

# %% nbmake={"post_cell_execute": ["assert page.poll() is None"]}
page = colab.show_dashboard(output_dir=config.output_dir)

# %% [markdown]
# *Detached* means: in a process of its own. Close the tab, restart the kernel, even kill it: it trains
# on, and `colab.attach()` looks on again. Stopping this cell stops the looking, not the training;
# `colab.stop()` saves it and stops it.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
summary = colab.train(config, detached=True)

# %% [markdown]
# ## 3 · What would be faster here?
# Real steps of the real training, with one setting changed at a time; what was tried is thrown away.
# What changes the numbers of a training is only proposed. It takes a few minutes, less on a GPU.

# %% nbmake={"post_cell_execute": ["assert fastest['tried'] and fastest['settings']"]}
fastest = colab.find_fastest(config, with_learning_rate=True)
print(f"\nin a terminal: temper train --preset {preset} {fastest['flags']}")

# %% [markdown]
# ## 4 · Train with what was found
# It is another training, so it gets a run of its own. The report holds its forecast beside the truth.

# %% nbmake={"post_cell_execute": ["assert faster['status'] == 'finished'"]}
faster = colab.train(colab.configure(preset, **fastest["settings"], **session.settings()))

# %%
colab.show_report(faster["paths"]["run"])
