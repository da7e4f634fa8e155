# %% [markdown]
# # Temper: a first training that cannot get lost
#
# Choose **Runtime → Run all** (outside Colab: **Run → Run All Cells**) and read along.
# In about three minutes, on a free CPU too, a small language model learns eight kinds of tasks
# from 10,656 examples. Nothing asks you anything, and nothing is downloaded but Temper.
#
# Whatever happens meanwhile, choose **Run all** again: what is installed stays, what is trained is
# not trained again, and a training that was broken off goes on, bit for bit.

# %% [markdown]
# ## 1 · Install
# A minute the first time, nothing the next. It changes neither PyTorch nor anything else that the
# notebook has already loaded, so there is nothing to restart.

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %% [markdown]
# ## 2 · Where am I, and what is safe here?
# On Colab this asks once for your Google Drive, where every checkpoint is copied. If you say no,
# or there is none, the training goes on all the same, and you are told what you could lose.

# %% nbmake={"post_cell_execute": ["assert session.settings()['output_dir']"]}
session = colab.begin()

# %% [markdown]
# ## 3 · Settings
# Choose here, or leave everything as it is: what stays empty, Temper chooses. Each of them can also
# be set in the form below, by an environment variable or in a file; Temper writes down where each
# value came from.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert config.model.name == 'embedded'"]}
preset = "none"  # @param ["none", "quick", "thorough", "small_memory"]
model = "embedded"  # @param ["embedded", "Qwen/Qwen2.5-0.5B"] {allow-input: true}
lora = False  # @param {type:"boolean"}
epochs = ""  # @param ["", "1", "2", "3", "5"] {allow-input: true}
batch_size = ""  # @param ["", "4", "8", "16", "32", "auto"] {allow-input: true}
learning_rate = ""  # @param ["", "1e-5", "2e-5", "2e-4", "1e-3"] {allow-input: true}

sizes = {"num_epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
chosen = {"model.name": model, "model.lora_config": lora, **sizes, **session.settings()}
config = colab.configure(preset, **chosen)

# %% [markdown]
# The form shows every setting, says what is wrong while you type, and what the training will cost.
# You need not touch it: *Run all* does not wait here.

# %% nbmake={"post_cell_execute": ["assert form.config.training.max_steps"]}
form = colab.show_form(config)

# %% [markdown]
# ## 4 · Train
# Before the first step Temper tries out your model, your data and this machine, and says how long it
# will take. A small *quantum step* looks at twenty examples and leaves out two of them, so that the
# gradients of the others stand for all ([03](03_quantum_step.ipynb) has more). Stop it with the cell's stop button: the step is finished, everything is saved, and
# running the cell again goes on.

# %% nbmake={"post_cell_execute": ["from pathlib import Path", "assert summary['status'] == 'finished'", "assert summary['after']['eval_loss'] < summary['before']['eval_loss']", "assert Path(summary['paths']['run'], 'run.json').is_file()"]}
summary = colab.train(form.config)

# %% [markdown]
# ## 5 · What did it learn?
# Nothing like these three, in whatever words or order, was among the examples that it learnt from.
# Ask something else, if you like: lists to reverse, dates to rewrite, words to put in capitals.

# %% nbmake={"post_cell_execute": ["assert len(answers) == 3"]}
questions = [
    "Reverse this list: blue, car, sheep",
    "Write in capital letters: red grape cow",
    "In Dublin lives Karim, aged 79. Write it as JSON.",
]
answers = colab.ask(summary["paths"]["model"], questions)

# %% [markdown]
# The report has the curves, the data, the machine, and where every setting came from.

# %%
colab.show_report(summary["paths"]["run"])

# %% [markdown]
# ## 6 · Take it with you
# The model lies in the ordinary Hugging Face layout, and a copy of every checkpoint at the place that
# step 2 named. This packs the model and the report into one file.

# %% nbmake={"post_cell_execute": ["assert archive.stat().st_size > 100_000"]}
archive = colab.download_results(summary["paths"]["run"])

# %% [markdown]
# ## And now?
# Choose **Run all** again, and see that it takes seconds. Then:
# your own data ([01](01_finetune_your_data.ipynb)) ·
# what happens when the machine goes away ([02](02_continue_after_disconnect.ipynb)) ·
# the quantum step ([03](03_quantum_step.ipynb)) ·
# watching and tuning ([05](05_watch_and_tune.ipynb)) ·
# measuring and exporting ([07](07_evaluate_and_export.ipynb)).
