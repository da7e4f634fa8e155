# ---
# jupyter:
#   accelerator: GPU
#   colab:
#     gpuType: T4
# ---

# %% [markdown]
# # Fine-tune a model on your own data
#
# Bring a file of conversations, questions and answers, or plain text, choose a model, and press
# *Run all*. Without changes, the notebook trains the small built-in model on sample conversations,
# on a CPU too, so that you can see everything work before you use your own data.

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
colab.install(with_unsloth="on_gpu")  # Unsloth is faster on a GPU
session = colab.begin()

# %% [markdown]
# ## 2 · Choose your data
# Enter a path on this machine or on your Drive, a Google Drive link, an `https://…` address, or
# `hf://datasets/…`. Files that arrive damaged or incomplete are rejected. If you leave the field
# empty, Temper writes sample conversations. Look at their first line to see one possible format.
#
# Temper reads JSON, JSONL, CSV, TSV, text and Parquet, and recognizes prompt/completion, Alpaca,
# ShareGPT, messages and question/answer. Rows that cannot be used are skipped and listed with file,
# line and reason.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert data.is_file()"]}
source = ""  # @param {type:"string"}
data = colab.fetch_dataset(source or colab.sample_chats())

# %% [markdown]
# ## 3 · Choose a model and what it learns
# To fine-tune a model that can already chat, choose one with *Instruct* in its name and a GPU
# (**Runtime → Change runtime type → T4**), and turn on LoRA. It trains only small adapters, so it
# fits wherever the model fits. With LoRA, `quantization` stores the model itself in 4 or 8 bits
# (QLoRA), so a larger one fits.
#
# With *answers*, only answer tokens contribute to the loss, so the model does not learn to write
# the questions. If the model has a chat template, Temper trains with it. To use another one, enter
# it in `chat_template` (Jinja, or a file).

# %%
model = "embedded"  # @param ["embedded", "Qwen/Qwen2.5-0.5B-Instruct"] {allow-input: true}
lora = False  # @param {type:"boolean"}
quantization = ""  # @param ["", "4bit", "8bit"]
learn = "answers"  # @param ["answers", "all"]
chat_template = ""  # @param {type:"string"}

what = {"lora": lora, "quantization": quantization}
what |= {"train_on": learn, "chat_template": chat_template}

# %% [markdown]
# Set how long and how fast the model learns. Temper chooses a value for each empty field. If
# `backup_place` is empty, the checkpoints are backed up to your Drive if it is mounted.

# %%
epochs = ""  # @param ["", "1", "2", "3", "5"] {allow-input: true}
batch_size = ""  # @param ["", "4", "8", "16", "32", "auto"] {allow-input: true}
learning_rate = ""  # @param ["", "1e-5", "2e-5", "2e-4", "1e-3"] {allow-input: true}
backup_place = ""  # @param {type:"string"}

how = {"num_epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
given = {**what, **how, **session.settings()}
if backup_place:
    given["backup.place"] = backup_place
config = colab.configure(model=model, data_path=str(data), **given)

# %% [markdown]
# ## 4 · Check the data before you train
# This cell reads the data exactly as training does and shows two examples as the model sees them. The
# marked tokens are trained. If a question is marked, or the end of an answer is not, change the
# settings now.

# %%
colab.show_data(config)

# %% [markdown]
# The form shows all other settings, what each one does, and what the run will take. *Run all* does
# not wait here.

# %%
form = colab.show_form(config)

# %% [markdown]
# ## 5 · Train
# If the run is interrupted, run this cell again. It resumes, here or on another machine with your
# Drive.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'", "assert summary['after']['eval_loss'] < summary['before']['eval_loss']"]}
summary = colab.train(form.config)

# %% [markdown]
# ## 6 · Ask the model and download it

# %% nbmake={"post_cell_execute": ["assert len(answers) == 1"]}
question = "Reverse this list: blue, car, sheep"  # @param {type:"string"}
answers = colab.ask(summary["paths"]["model"], [question])

# %% nbmake={"post_cell_execute": ["assert archive.is_file()"]}
archive = colab.download_results(summary["paths"]["run"])
