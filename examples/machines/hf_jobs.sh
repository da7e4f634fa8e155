#!/bin/bash
# A job on the Hub's own machines. Typed again, it goes on from the bucket, until the training is done.
#   bash examples/machines/hf_jobs.sh
# IMAGE: one of yours, with Temper in it. The folder data/ has your chats.jsonl.
# The deadline comes before the job's time is over: then the training has saved, and the copy is done.
hf jobs run --flavor l4x1 --timeout 4h --secrets HF_TOKEN -v ./data:/data IMAGE \
  temper train /data/chats.jsonl --lora --num-processes auto --deadline 225m --backup-place hf://buckets/OWNER/NAME
