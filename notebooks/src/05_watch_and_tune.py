# %% [markdown]
# # Monitor a run, then make it faster
#
# In the first half, you train in a separate process and follow it from here. In the second half,
# you measure which settings train this model fastest on this machine, and how high the learning
# rate can be.

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% tags=["parameters"]
preset = "quick"  # @param ["quick", "none", "thorough", "small_memory"]

config = colab.configure(preset, **session.settings())

# %% [markdown]
# ## 2 · Open the dashboard
# The dashboard follows the newest run: progress, curves, the machine, alerts, and which step is
# backed up. In a terminal, use `temper dashboard` or `temper watch`. The page stays empty until the
# next cell trains.

# %% nbmake={"post_cell_execute": ["assert page.poll() is None"]}
page = colab.show_dashboard(output_dir=config.output_dir)

# %% [markdown]
# A *detached* run trains in its own process. Close the tab, restart the kernel, or kill it: the run
# continues, and `colab.attach()` follows it again. If you stop this cell, you stop following the
# run, not the run itself. `colab.stop()` saves a checkpoint and stops it.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
summary = colab.train(config, detached=True)

# %% [markdown]
# ## 3 · Find faster settings
# This cell runs real steps of your training, changes one setting at a time, and discards the trained
# weights. It takes a few minutes, less on a GPU. Settings that would change the result of a run are
# only proposed.

# %% nbmake={"post_cell_execute": ["assert fastest['tried'] and fastest['settings']"]}
fastest = colab.find_fastest(config, with_learning_rate=True)
print(f"\nIn a terminal: temper train --preset {preset} {fastest['flags']}")

# %% [markdown]
# ## 4 · Train with the faster settings
# Different settings make a different run, so this starts a new one. The report shows the forecast
# next to the actual time.

# %% nbmake={"post_cell_execute": ["assert faster['status'] == 'finished'"]}
faster = colab.train(colab.configure(preset, **fastest["settings"], **session.settings()))

# %%
colab.show_report(faster["paths"]["run"])
