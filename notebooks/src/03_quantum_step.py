# %% [markdown]
# # A decision of the training as a question for an annealer
#
# Which half of the examples stands best for all of them? Each example pulls the weights in a direction
# of its own: its gradient. Temper looks for the examples whose mean gradient is nearest to that of all.
# That is a quadratic problem over zeros and ones, and any sampler can answer it: an exact one, an
# annealer on this machine, or quantum hardware. Baselines, greedy and random, stand beside it.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · What to ask
# The budget is the share that is trained on. Of 10,656 examples so many are looked at; of the others
# the same share is drawn by chance. More candidates take longer: the log says how long before it
# begins. Another solver, such as *tabu*, *qaoa* (at most 20) or *leap_hybrid*, goes by its name.

# %% tags=["parameters"]
preset = "quick"  # @param ["quick", "none"]
budget, candidates, solver = 0.5, 40, "auto"

settings = {"quantum.data_budget": budget, "quantum.candidates": candidates}
settings["quantum.solver"] = solver
config = colab.configure(preset, **settings, **session.settings())

# %% [markdown]
# ## 3 · Train
# The question is asked before the first step. A sampler that fails or takes too long is told, the best
# baseline stands in, and the training goes on.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
summary = colab.train(config)

# %% [markdown]
# ## 4 · What was chosen
# The lower the energy, the nearer the chosen examples are to all of them. The bars are a hundred
# choices by chance, the thick line is the answer that was taken.

# %% nbmake={"post_cell_execute": ["assert records[0]['outcome'] == 'answered'", "assert records[0]['num_variables'] == candidates", "assert records[0]['energy'] < min(records[0]['random_energies'])"]}
records = colab.show_quantum_steps(summary["paths"]["run"])

# %% [markdown]
# ## 5 · Is it worth anything?
# The same training with a greedy choice, with one by chance, and with all examples, at equal steps.
# A lower energy need not mean a lower loss: with a budget this large and clean data, expect no
# difference that another seed would not turn around. It helps where the budget is small and the data
# holds duplicates and noise.

# %% nbmake={"post_cell_execute": ["assert [row['answer'] for row in rows] == ['quantum', 'greedy', 'random', 'none']", "assert len({row['steps'] for row in rows}) == 1"]}
rows = colab.compare_quantum_steps(config)

# %%
colab.show_report(summary["paths"]["run"])
