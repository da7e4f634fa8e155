#!/bin/bash
# A job of Slurm that goes on in the next one, until the training is done.
#   sbatch examples/machines/slurm.sh
#SBATCH --job-name=temper
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Slurm sends SIGTERM to the training five minutes before the limit, and where it preempts the job.
# The deadline comes before that: then the training has saved by itself.
#SBATCH --signal=TERM@300

srun temper train chats.jsonl --lora --num-processes auto --deadline 225m --output "$HOME/runs"
code=$?

# 130: stopped before its deadline; 143: by SIGTERM. Both are saved, and go on in the same job, later.
if [ "$code" -eq 130 ] || [ "$code" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
