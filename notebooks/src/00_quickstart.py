# %% [markdown]
# # Temper: your first run
#
# Choose **Runtime → Run all** (outside Colab: **Run → Run All Cells**) and read along. In about
# three minutes, on a free CPU too, a small language model learns eight kinds of tasks from 10,656
# examples. You do not have to enter anything. Temper is the only download.
#
# If anything interrupts the notebook, choose **Run all** again. Finished steps are not repeated,
# and an interrupted run resumes from its last checkpoint, bit for bit.

# %% [markdown]
# ## 1 · Install Temper
# This takes a minute the first time, and no time after that. It does not change PyTorch or any
# other package that the notebook has already loaded, so you do not have to restart.

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %% [markdown]
# ## 2 · Start a session
# On Colab, this asks once for access to your Google Drive, which becomes the backup destination for
# every checkpoint. If you decline, or if there is no Drive, training continues, and the output says
# what you could lose.

# %% nbmake={"post_cell_execute": ["assert session.settings()['output_dir']"]}
session = colab.begin()

# %% [markdown]
# ## 3 · Choose settings
# Change what you like, or leave everything as it is: Temper chooses a value for each empty field.
# You can also set everything in the form below, in an environment variable, or in a file. Temper
# records where each value came from.

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
# The form shows every setting, reports errors while you type, and forecasts what the run will take.
# You can ignore it: *Run all* does not wait here.

# %% nbmake={"post_cell_execute": ["assert form.config.training.max_steps"]}
form = colab.show_form(config)

# %% [markdown]
# ## 4 · Train
# Before the first step, Temper checks your model, your data and this machine, and forecasts how
# long the run will take. It also runs a small *quantum step*: it looks at twenty examples and
# leaves out two of them, so that the gradients of the others represent all twenty (see
# [notebook 03](03_quantum_step.ipynb)).
#
# To stop, press the cell's stop button. Temper finishes the current step and saves a checkpoint.
# Run the cell again to resume.

# %% nbmake={"post_cell_execute": ["from pathlib import Path", "assert summary['status'] == 'finished'", "assert summary['after']['eval_loss'] < summary['before']['eval_loss']", "assert Path(summary['paths']['run'], 'run.json').is_file()"]}
summary = colab.train(form.config)

# %% [markdown]
# ## 5 · See what the model learned
# None of these three questions was in the training data, in any wording or order. Ask your own,
# too: lists to reverse, dates to rewrite, words to capitalize.

# %% nbmake={"post_cell_execute": ["assert len(answers) == 3"]}
questions = [
    "Reverse this list: blue, car, sheep",
    "Write in capital letters: red grape cow",
    "In Dublin lives Karim, aged 79. Write it as JSON.",
]
answers = colab.ask(summary["paths"]["model"], questions)

# %% [markdown]
# The report shows the result, the curves, the data, the machine, and the origin of every setting.

# %%
colab.show_report(summary["paths"]["run"])

# %% [markdown]
# ## 6 · Download the model
# The model is an ordinary Hugging Face folder. Checkpoints are also at the backup destination that
# step 2 named. This cell packs the model and the report into one file.

# %% nbmake={"post_cell_execute": ["assert archive.stat().st_size > 100_000"]}
archive = colab.download_results(summary["paths"]["run"])

# %% [markdown]
# ## Next steps
# Choose **Run all** again: it finishes in seconds. Then continue with:
#
# - [01](01_finetune_your_data.ipynb): fine-tune a model on your own data
# - [02](02_continue_after_disconnect.ipynb): resume after a disconnect
# - [03](03_quantum_step.ipynb): choose training examples with the quantum step
# - [05](05_watch_and_tune.ipynb): monitor a run and make it faster
# - [07](07_evaluate_and_export.ipynb): evaluate and export a model
