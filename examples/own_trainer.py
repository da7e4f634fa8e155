"""Trainers of TRL with Temper's callback, SFT and then DPO; if killed, the same command resumes.

python examples/own_trainer.py MODEL
"""

import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import temper

ROWS = [{"prompt": f"{n} + 1 =", "chosen": f" {n + 1}", "rejected": f" {n}"} for n in range(16)]
TEXTS = [{"text": row["prompt"] + row["chosen"]} for row in ROWS]
OPTIONS = {"max_steps": 4, "per_device_train_batch_size": 4, "report_to": [], "bf16": False}


def train(name, trainer_class, model, args, rows):
    model, rows = AutoModelForCausalLM.from_pretrained(model), Dataset.from_list(rows)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    trainer = trainer_class(model, args=args, train_dataset=rows, processing_class=tokenizer)
    callback = temper.TemperCallback(name)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())


if __name__ == "__main__":
    train("sft", SFTTrainer, sys.argv[1], SFTConfig("sft", **OPTIONS), TEXTS)
    train("dpo", DPOTrainer, "runs/sft/final", DPOConfig("dpo", **OPTIONS), ROWS)
