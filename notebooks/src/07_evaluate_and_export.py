# %% [markdown]
# # Measure a model, and take it anywhere
#
# What did the training change, on examples that it never saw? And how do you get the model out:
# as a folder that every Hugging Face library reads, from the end of the training or from any
# checkpoint.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · A model
# The training of the [quickstart](00_quickstart.ipynb). Where it is finished already, on this machine or
# on your Drive, it is found and not trained again.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'"]}
preset = "none"  # @param ["none", "quick", "thorough", "small_memory"]

summary = colab.train(colab.configure(preset, **session.settings()))
run, model = summary["paths"]["run"], summary["paths"]["model"]

# %% [markdown]
# ## 3 · Measure it
# Loss and right answers, with the interval that other rows like these would give, for each kind of
# task. `data` may be any file of yours, in any format that a training reads. The page that is written
# beside the numbers has every answer.

# %%
from infrastructure.training.data.samples import SAMPLE_HELDOUT

data = str(SAMPLE_HELDOUT)  # @param {type:"raw"}
measured = colab.evaluate(model, data)

# %% [markdown]
# ## 4 · Ask it
# Prompt format and the end of an answer are those of the training; you write plain words.

# %% nbmake={"post_cell_execute": ["assert len(answers) == 2"]}
questions = [
    "Which of these is a fruit: plum, car, axe?",
    "Write February 10, 1984 as an ISO date.",
]
answers = colab.ask(model, questions)

# %% [markdown]
# ## 5 · Any checkpoint as a model
# The trained model lies in `final/` of the run. A checkpoint becomes the same kind of folder; give
# `step=` for an earlier one. What is written is read back and compared with the trained model before
# the folder gets its name.

# %% nbmake={"post_cell_execute": ["assert (folder / 'config.json').is_file()", "assert (folder / 'model.safetensors').is_file()"]}
folder = colab.export(run)

# %% [markdown]
# Half as large: 16 bits for each weight. Does that change what it answers? Both models get the same rows,
# and are compared in pairs. `bits=8` and `bits=4` (bitsandbytes), `part="merged"` for a LoRA added to
# its base, and `file_format="gguf"`, `"onnx"` or `"torch-export"` work the same way.

# %% nbmake={"post_cell_execute": ["assert compared.against['differences']"]}
half = colab.export(run, bits=16)
compared = colab.evaluate(model, data, against=half)

# %% [markdown]
# ## 6 · Without Temper
# Nothing in that folder is ours: plain `transformers` reads it. The model was trained with the chat
# template that lies beside it, so it is asked with that, and answers as above.

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
# ## 7 · Take it with you
# `temper export RUN --push-to-hub OWNER/NAME` puts it on the Hub, private, with a card;
# `temper train --backup-place hf://OWNER/NAME` keeps every checkpoint of a training there.

# %% nbmake={"post_cell_execute": ["assert archive.is_file()"]}
archive = colab.download_results(run)
