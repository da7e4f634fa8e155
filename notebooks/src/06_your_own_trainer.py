# %% [markdown]
# # Add Temper to your own Trainer
#
# Keep your transformers, TRL or Unsloth Trainer and add three lines. From then on, a kill at any
# moment leaves a good checkpoint, checkpoints are backed up to your Drive, and the same cell
# resumes the run on another machine. It ends with the weights of an uninterrupted run.

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · Prepare the model and the data
# These cells create a small model, its tokenizer and some rows, so that nothing has to be
# downloaded. In your own script, the same classes load them from the Hub with `from_pretrained`.

# %% nbmake={"post_cell_execute": ["assert len(rows) == 64"]}
import pandas
from datasets import Dataset
from infrastructure.data.samples import SAMPLE_TRAIN

table = pandas.read_json(SAMPLE_TRAIN, lines=True).head(64)[["prompt", "completion"]]
table["prompt"] += "\n"  # keeps a token from spanning prompt and answer
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
# ## 3 · Create your Trainer as usual

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
# ## 4 · Add three lines
# The name identifies the run when it resumes, here or on another machine. Step 1 showed where the
# run is stored and backed up. To stop, press the cell's stop button: the current step finishes, and
# a checkpoint is saved. To resume, choose *Run all* again, at any time, also in a new runtime.

# %% nbmake={"post_cell_execute": ["assert trainer.state.global_step == 24", "assert callback.run.final.is_dir()"]}
config = colab.configure(**session.settings())
callback = colab.TemperCallback("my-own-trainer", config)
trainer.add_callback(callback)
trainer.train(resume_from_checkpoint=callback.resume_from())

# %% [markdown]
# Checkpoints that the Trainer would have written to `trainer/` are in the run. Each one is verified
# when it is written and again when it is read. `resume_from()` turns the newest one into an
# ordinary checkpoint folder, which any Trainer can read, with this callback or without it:

# %% nbmake={"post_cell_execute": ["assert 'optimizer.pt' in files"]}
from pathlib import Path

files = sorted(path.name for path in Path(callback.resume_from()).iterdir())
print(*files, sep="\n")

# %% [markdown]
# ## 5 · See the report
# The dashboard, `temper watch`, alerts and this report work as for every Temper run. Add early
# stopping and other hooks with `TemperCallback(..., hooks=[...])`.

# %%
colab.show_report(callback.run.directory)
