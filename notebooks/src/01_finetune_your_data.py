# ---
# jupyter:
#   accelerator: GPU
#   colab:
#     gpuType: T4
# ---

# %% [markdown]
# # Fine-tune a model on your own data
#
# Bring a file of conversations, questions and answers, or plain text; choose a model; *Run all*.
# As it stands, the notebook trains the small embedded model on sample conversations, on a CPU too,
# so that you can see it all work before you bring your own.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
colab.install(with_unsloth="on_gpu")  # where there is a GPU, Unsloth is faster
session = colab.begin()

# %% [markdown]
# ## 2 · Your data
# A path on this machine or on your Drive, a Google Drive link, `https://…`, or `hf://datasets/…`. A file
# that arrives damaged or cut is refused. Left empty, sample conversations are written: look at
# their first line to see what a file of yours may look like.
#
# JSON, JSONL, CSV, TSV, text and Parquet are read; prompt/completion, Alpaca, ShareGPT, messages and
# question/answer are recognised. Rows that cannot be used are set aside with file, line and reason.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert data.is_file()"]}
source = ""  # @param {type:"string"}
data = colab.fetch_dataset(source or colab.sample_chats())

# %% [markdown]
# ## 3 · The model, and what it learns from
# For a model that can talk already, choose one with *Instruct* in its name and a GPU
# (**Runtime → Change runtime type → T4**), and train LoRA matrices only: they fit where the model fits.
#
# *Answers only* means that the model is not taught to write the questions. A model that has a chat
# template is trained with it; `chat_template` gives another one (Jinja, or a file).

# %%
model = "embedded"  # @param ["embedded", "Qwen/Qwen2.5-0.5B-Instruct"] {allow-input: true}
lora = False  # @param {type:"boolean"}
learn = "answers"  # @param ["answers", "all"]
chat_template = ""  # @param {type:"string"}

what = {"model.lora_config": lora, "data.train_on": learn, "data.chat_template": chat_template}

# %% [markdown]
# How long it trains, and how fast it learns. What stays empty, Temper chooses.

# %%
epochs = ""  # @param ["", "1", "2", "3", "5"] {allow-input: true}
batch_size = ""  # @param ["", "4", "8", "16", "32", "auto"] {allow-input: true}
learning_rate = ""  # @param ["", "1e-5", "2e-5", "2e-4", "1e-3"] {allow-input: true}

how = {"num_epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
given = {**what, **how, **session.settings()}
config = colab.configure(model_name=model, data_path=str(data), **given)

# %% [markdown]
# ## 4 · Look before you pay
# This reads the data as the training will, and shows one example as the model sees it: every token
# that is marked is learnt. If a question is marked, or the end of an answer is not, change it now.

# %%
colab.show_data(config)

# %% [markdown]
# All the other settings, with what each does, what is wrong with it, and what the training will cost.
# *Run all* does not wait here.

# %%
form = colab.show_form(config)

# %% [markdown]
# ## 5 · Train
# A broken-off training goes on when you run this again, here or on another machine with your Drive.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'", "assert summary['after']['eval_loss'] < summary['before']['eval_loss']"]}
summary = colab.train(form.config)

# %% [markdown]
# ## 6 · Ask it, and take it with you

# %% nbmake={"post_cell_execute": ["assert len(answers) == 1"]}
question = "Reverse this list: blue, car, sheep"  # @param {type:"string"}
answers = colab.ask(summary["paths"]["model"], [question])

# %% nbmake={"post_cell_execute": ["assert archive.is_file()"]}
archive = colab.download_results(summary["paths"]["run"])
