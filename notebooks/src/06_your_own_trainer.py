# %% [markdown]
# # Your own trainer, and nothing of it lost
#
# You have a notebook with a Trainer of transformers, TRL or Unsloth, and want to keep it. Add three
# lines: from then on its checkpoints are written so that a kill at any instant leaves a good one,
# they are copied to your Drive, and the same cell goes on where the machine went away, with the
# weights that an undisturbed training would have had.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · What your notebook does before its training
# A model, its tokenizer and some rows. Yours come from the Hub, by `from_pretrained`; so that nothing
# need be downloaded, these are made here, by the same classes.

# %% nbmake={"post_cell_execute": ["assert len(rows) == 64"]}
import pandas
from datasets import Dataset
from infrastructure.training.data.samples import SAMPLE_TRAIN

table = pandas.read_json(SAMPLE_TRAIN, lines=True).head(64)[["prompt", "completion"]]
table["prompt"] += "\n"  # where a prompt ends, a token has to end, too
rows = Dataset.from_pandas(table)

# %% nbmake={"post_cell_execute": ["assert tokenizer('Reverse').input_ids"]}
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

bytes_and_words = ByteLevelBPETokenizer()
texts = table["prompt"] + table["completion"]
bytes_and_words.train_from_iterator(texts, vocab_size=600, special_tokens=["<pad>", "</s>"])
bytes_and_words.save("tokenizer.json")
ends = {"pad_token": "<pad>", "eos_token": "</s>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_file="tokenizer.json", **ends)

# %% nbmake={"post_cell_execute": ["assert type(model).__module__.startswith('transformers.')"]}
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(0)
heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, pad_token_id=0, eos_token_id=1))

# %% [markdown]
# ## 3 · Your trainer, as it was

# %% tags=["parameters"]
num_steps = 24  # @param {type:"integer"}
learning_rate = 1e-3  # @param {type:"number"}

# %%
from trl import SFTConfig, SFTTrainer

options = {"max_steps": num_steps, "per_device_train_batch_size": 8, "learning_rate": learning_rate}
more = {"logging_steps": 1, "save_steps": 8, "report_to": "none", "bf16": False}
args = SFTConfig(output_dir="trainer", max_length=128, **options, **more)
trainer = SFTTrainer(model, args, train_dataset=rows, processing_class=tokenizer)

# %% [markdown]
# ## 4 · Three lines
# The name is what the training is found by when it goes on, here or on another machine. Where it lies
# and where it is copied to is what step 1 said. Stop the cell with its stop button: the step is
# finished, and everything is saved. *Run all* again, tomorrow, in a new runtime: it goes on.

# %% nbmake={"post_cell_execute": ["assert trainer.state.global_step == 24", "assert callback.run.final.is_dir()"]}
config = colab.configure(**session.settings())
callback = colab.TemperCallback("my-own-trainer", config)
trainer.add_callback(callback)
trainer.train(resume_from_checkpoint=callback.resume_from())

# %% [markdown]
# What the Trainer would have written into `trainer/` lies in the run now, each version verified when it
# was written and again when it is read. `resume_from()` makes an ordinary checkpoint folder of the
# newest, which any Trainer reads, with this callback or without:

# %% nbmake={"post_cell_execute": ["assert 'optimizer.pt' in files"]}
from pathlib import Path

files = sorted(path.name for path in Path(callback.resume_from()).iterdir())
print(*files, sep="\n")

# %% [markdown]
# ## 5 · And what you see of it
# The dashboard, `temper watch`, alerts and this report work as for every run of Temper. Early stopping
# and other hooks of yours go into `TemperCallback(..., hooks=[...])`.

# %%
colab.show_report(callback.run.directory)
