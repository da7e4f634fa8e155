# %% [markdown]
# # Evaluate a model and export it
#
# What did training change, on held-out examples? And how do you get the model out, from the end of
# the run or from any checkpoint, as a folder that every Hugging Face library reads?

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · Get a model
# This is the run of the [quickstart](00_quickstart.ipynb). If it is already finished, on this
# machine or on your Drive, Temper finds it and does not train it again.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
preset = "none"  # @param ["none", "quick", "thorough", "small_memory"]

summary = colab.train(colab.configure(preset, **session.settings()))
run, model = summary["paths"]["run"], summary["paths"]["model"]

# %% [markdown]
# ## 3 · Evaluate it
# This cell shows the loss and the share of correct answers for each kind of task. The intervals show
# how much these would vary with other rows like these. `data` can be any file of yours, in any
# format that training reads. Temper also writes a page with every answer.

# %%
from infrastructure.data.samples import SAMPLE_HELDOUT

data = str(SAMPLE_HELDOUT)  # @param {type:"raw"}
measured = colab.evaluate(model, data)

# %% [markdown]
# ## 4 · Ask it
# Type plain text. Temper formats it like the prompts in training, and stops where answers ended
# in training.

# %% nbmake={"post_cell_execute": ["assert len(answers) == 2"]}
questions = [
    "Which of these is a fruit: plum, car, axe?",
    "Write February 10, 1984 as an ISO date.",
]
answers = colab.ask(model, questions)

# %% [markdown]
# ## 5 · Export any checkpoint
# The trained model is in `final/` of the run. `colab.export` writes a checkpoint as the same kind
# of folder. Give `step=` for an earlier one. Temper reads the export back and compares it with the
# trained model before the folder gets its name.

# %% nbmake={"post_cell_execute": ["assert (folder / 'config.json').is_file()", "assert (folder / 'model.safetensors').is_file()"]}
folder = colab.export(run)

# %% [markdown]
# Halve the size: store each weight in 16 bits. Does that change the answers? This cell gives both
# models the same rows and compares them in pairs. Other options work the same way:
#
# - `bits=8` and `bits=4` quantize with bitsandbytes.
# - `part="merged"` adds a LoRA to its base model.
# - `file_format="gguf"`, `"onnx"` or `"torch-export"` writes another format.

# %% nbmake={"post_cell_execute": ["assert compared.against['differences']"]}
half = colab.export(run, bits=16)
compared = colab.evaluate(model, data, against=half)

# %% [markdown]
# ## 6 · Use the model without Temper
# Plain `transformers` reads the exported folder. The model was trained with the chat template that
# the folder contains, so ask it with that template. It answers as above.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
tokenizer = AutoTokenizer.from_pretrained(folder)
plain = AutoModelForCausalLM.from_pretrained(folder)

# %% nbmake={"post_cell_execute": ["assert answer.strip() == answers[0]"]}
question = [{"role": "user", "content": questions[0]}]
prompt = tokenizer.apply_chat_template(
    question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
written = plain.generate(**prompt, max_new_tokens=64, do_sample=False)
answer = tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
print(answer)

# %% [markdown]
# ## 7 · Share the model and download it
# - `temper export RUN --push-to-hub OWNER/NAME` publishes the model on the Hub, private, with a
#   model card.
# - `temper train --backup-place hf://buckets/OWNER/NAME` backs up the checkpoints of a run to a
#   private bucket on the Hub.

# %% nbmake={"post_cell_execute": ["assert archive.is_file()"]}
archive = colab.download_results(run)
