# %% [markdown]
# # The machine goes away. You go on.
#
# Free runtimes end: after hours, at an idle moment, or because somebody else needs the machine.
# This notebook does not describe what happens then. It does it: a training is killed in the middle
# (SIGKILL, the signal that no program can answer), its disk is taken away, and then the same
# command goes on. At the end you compare the weights with those of a training that nobody disturbed.

# %% [markdown]
# ## 1 · Install, and see where we are

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · A training with a checkpoint every five steps
# The *place* is where checkpoints are copied to: your Google Drive on Colab, here a folder where there
# is no Drive. It is what is left when the machine is not.
#
# Two configurations, the same in all that decides the result. `config` is the one that will suffer;
# `undisturbed` is trained in peace, in a folder of its own, to compare with.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert config.backup.place", "assert undisturbed.backup.place != config.backup.place"]}
steps = 60  # @param {type:"integer"}
settings = {"training.max_steps": steps, "training.checkpoint_frequency": 5}

place = {"backup.place": "place", **session.settings()}
config = colab.configure("quick", **settings, **place)
undisturbed = colab.configure("quick", **settings, output_dir="undisturbed")

# %% [markdown]
# ## 3 · Train, and lose the machine
# The training runs in a process of its own. As soon as its first third is safe at the place, that
# process and all its helpers are killed, and the run's directory is taken away, as when a runtime is
# gone with its disk.

# %% nbmake={"post_cell_execute": ["from pathlib import Path", "assert list(Path(config.output_dir, 'lost-machines').glob('*/checkpoints'))"]}
colab.rehearse_disconnect(config, at_step=config.training.max_steps // 3)

# %% [markdown]
# ## 4 · Go on
# This is the same command as before. There is nothing on this machine to go on with, so the run is
# fetched from the place and verified, and the training goes on after its last safe step. On another
# machine, tomorrow, it would be the same: *Run all*.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'", "assert summary['steps'] == summary['total_steps']"]}
summary = colab.train(config)

# %% [markdown]
# ## 5 · Is it really the same?
# Train the other one from start to end, and compare every bit of the weights.

# %% nbmake={"post_cell_execute": ["assert reference['status'] == 'finished'"]}
reference = colab.train(undisturbed)

# %% nbmake={"post_cell_execute": ["assert killed == whole"]}
from pathlib import Path
from infrastructure.core.files import file_sha256

killed = file_sha256(Path(summary["paths"]["model"], "model.safetensors"))
whole = file_sha256(Path(reference["paths"]["model"], "model.safetensors"))
print(f"killed in the middle  {killed}\nnever disturbed       {whole}")
print("the same model, bit for bit" if killed == whole else "NOT THE SAME: please report this")

# %% [markdown]
# ## What was at stake
# The age of the newest copy at the place is all that a dead machine can cost. It stands on every view
# of a training, and here:

# %%
colab.show_report(summary["paths"]["run"])
