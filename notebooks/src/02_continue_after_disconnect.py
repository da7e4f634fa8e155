# %% [markdown]
# # Resume after the machine goes away
#
# Free runtimes end: after some hours, when they are idle, or when they are preempted for someone
# else. This notebook shows what happens then, on a real run. It kills the run in the middle
# (SIGKILL, the signal that no program can handle), removes its disk, and resumes it with the same
# command. At the end, you compare its weights with those of an uninterrupted run.

# %% [markdown]
# ## 1 · Install Temper and start a session

# %% cellView="form" tags=["install"] nbmake={"post_cell_execute": ["assert colab.install"]}
import colab

colab.install()

# %%
session = colab.begin()

# %% [markdown]
# ## 2 · Configure a checkpoint every five steps
# Checkpoints are copied to the *backup destination*: your Google Drive on Colab, or a folder if
# there is no Drive. If the machine is lost, only these copies are left.
#
# The two configurations agree in everything that affects the result. `config` is the run that will
# be killed. `undisturbed` runs without interruption, in its own folder, for comparison.

# %% tags=["parameters"] nbmake={"post_cell_execute": ["assert config.backup.place", "assert undisturbed.backup.place != config.backup.place"]}
steps = 60  # @param {type:"integer"}
settings = {"training.max_steps": steps, "training.checkpoint_frequency": 5}

place = {"backup.place": "place", **session.settings()}
config = colab.configure("quick", **settings, **place)
undisturbed = colab.configure("quick", **settings, output_dir="undisturbed")

# %% [markdown]
# ## 3 · Train, and lose the machine
# The run trains in its own process. As soon as its first third is confirmed at the backup
# destination, that process and all its helpers are killed, and the run's directory is removed, as
# if a runtime were lost together with its disk.

# %% nbmake={"post_cell_execute": ["from pathlib import Path", "assert list(Path(config.output_dir, 'lost-machines').glob('*/checkpoints'))"]}
colab.rehearse_disconnect(config, at_step=config.training.max_steps // 3)

# %% [markdown]
# ## 4 · Resume the run
# Train with the same configuration, as if nothing had happened. Nothing is left on this machine to
# resume from, so Temper restores the run from the backup destination, verifies it, and continues
# after its last confirmed step. You would do the same on another machine, at any time: *Run all*.

# %% nbmake={"post_cell_execute": ["assert summary['status'] == 'finished'", "assert summary['steps'] == summary['total_steps']"]}
summary = colab.train(config)

# %% [markdown]
# ## 5 · Compare the weights
# Train the other run without interruption, and compare every bit of the weights.

# %% nbmake={"post_cell_execute": ["assert reference['status'] == 'finished'"]}
reference = colab.train(undisturbed)

# %% nbmake={"post_cell_execute": ["assert killed == whole"]}
from pathlib import Path
from infrastructure.core.files import file_sha256

killed = file_sha256(Path(summary["paths"]["model"], "model.safetensors"))
whole = file_sha256(Path(reference["paths"]["model"], "model.safetensors"))
print(f"interrupted run    {killed}\nuninterrupted run  {whole}")
print("Same weights, bit for bit" if killed == whole else "DIFFERENT: please report this")

# %% [markdown]
# ## See what you could lose
# If a machine is lost, you lose only the steps since the newest backup. Every view of a run shows
# how old that backup is. So does the report:

# %%
colab.show_report(summary["paths"]["run"])
