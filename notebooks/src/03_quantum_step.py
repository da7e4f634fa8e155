# %% [markdown]
# # Choose training examples with an annealer
#
# Which half of the examples represents all of them best? Each example pulls the weights in its own
# direction: its gradient. Temper looks for the examples whose mean gradient is closest to the mean
# gradient of all. That is a quadratic problem over zeros and ones (a QUBO), and any solver can
# answer it: an exact one, an annealer on this machine, or quantum hardware. Temper also computes
# greedy and random baselines, so that you can compare.

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · Configure the problem
# `budget` is the share of the examples that is trained on. `candidates` is how many of the 10,656
# examples Temper looks at. From the others, it draws the same share at random. More candidates take
# longer; the log shows the expected time before the step starts. To use another solver, give its
# name, such as *simulated_annealing*, or the address of any dimod sampler, such as
# *dwave.samplers:TabuSampler*.

# %% tags=["parameters"]
preset = "quick"  # @param ["quick", "none"]
budget, candidates, solver = 0.5, 40, "auto"

settings = {"quantum.data_budget": budget, "quantum.candidates": candidates}
settings["quantum.solver"] = solver
config = colab.configure(preset, **settings, **session.settings())

# %% [markdown]
# ## 3 · Train
# Temper solves the problem before the first step. If a solver fails or takes too long, Temper
# reports it, uses the best baseline instead, and trains.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'", "import json, pathlib", "record, = json.loads((pathlib.Path(summary['paths']['run']) / 'quantum.json').read_text())['records']", "assert (record['outcome'], record['num_variables']) == ('answered', candidates)"]}
summary = colab.train(config)

# %% [markdown]
# ## 4 · See what was chosen
# The report shows the choice, who made it, and its energy beside those of the greedy and random
# baselines. The lower the energy, the closer the chosen examples are to all of them. A lower energy
# does not have to mean a lower loss: with clean data and a budget this large, expect no difference.
# The quantum step helps if the budget is small and the data contains duplicates and noise.

# %%
colab.show_report(summary["paths"]["run"])
