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
# name, such as *tabu*, *qaoa* (at most 20 candidates) or *leap_hybrid*.

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

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
summary = colab.train(config)

# %% [markdown]
# ## 4 · See what was chosen
# The lower the energy, the closer the chosen examples are to all of them. The bars show a hundred
# random choices. The thick line is the answer that was used.

# %% nbmake={"post_cell_execute": ["assert records[0]['outcome'] == 'answered'", "assert records[0]['num_variables'] == candidates", "assert records[0]['energy'] < min(records[0]['random_energies'])"]}
records = colab.show_quantum_steps(summary["paths"]["run"])

# %% [markdown]
# ## 5 · Measure whether it helps
# This cell repeats the run with a greedy choice, with a random choice, and with all examples, for
# the same number of steps. A lower energy does not have to mean a lower loss. With clean data and a
# budget this large, expect only differences that another seed could reverse. The quantum step helps
# if the budget is small and the data contains duplicates and noise.

# %% nbmake={"post_cell_execute": ["assert [row['answer'] for row in rows] == ['quantum', 'greedy', 'random', 'none']", "assert len({row['steps'] for row in rows}) == 1"]}
rows = colab.compare_quantum_steps(config)

# %%
colab.show_report(summary["paths"]["run"])
