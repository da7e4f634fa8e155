"""Defects that nothing may let through, and such that once survived the tests of their module: each
is tried beside what is drawn."""

import hashlib
from pathlib import Path

from tests.mutants.operators import Mutant

# What it is: the module, what stands there, and what is put in its place.
NAMED = {
    "a row that is cut learns the tokens before those that it is to learn": (
        "infrastructure/data/encoding/tokenization.py",
        "mask[: self.max_length].copy()",
        "mask[1 : self.max_length + 1].copy()",
    ),
    "the loss is normalised without the batch's last example": (
        "infrastructure/training/loop/optimizer_step.py",
        "self.adapter.count_items(examples))",
        "self.adapter.count_items(examples[:-1]))",
    ),
    "dropout is on while evaluating": (
        "infrastructure/training/forward/evaluation_loss.py",
        "            self.model.eval()\n",
        "            self.model.train()\n",
    ),
    "the best loss is not restored": (
        "infrastructure/training/checkpoints/snapshot.py",
        'state.best_evaluation_loss = _or(values["best_evaluation_loss"], float("inf"))',
        "pass",
    ),
    "a Trainer's best loss is not restored": (
        "infrastructure/training/hf_bridge/trainer_state.py",
        "state.best_evaluation_loss = math.inf if best is None else best",
        "pass",
    ),
    "an upload is confirmed without its objects": (
        "infrastructure/backup/replication/upload.py",
        "sent.confirmed_at is not None and self.objects.are_confirmed",
        "sent.confirmed_at is not None",
    ),
    "a manifest does not wait for its objects": (
        "infrastructure/backup/replication/upload.py",
        "while not self.are_confirmed:",
        "while False:",
    ),
    "what a place reads back comes from the page cache": (
        "infrastructure/backup/backends/base.py",
        "for chunk in place.read_back(path):",
        "for chunk in place.read(path):",
    ),
    "what a store reads back comes from the page cache": (
        "infrastructure/backup/format/objects.py",
        "hash_of(hash_name, self.operations.read_back(path)) != digest",
        "hash_of(hash_name, self.operations.read(path)) != digest",
    ),
    "the page cache is not asked to forget": (
        "infrastructure/backup/format/file_operations.py",
        "os.POSIX_FADV_DONTNEED",
        "os.POSIX_FADV_NORMAL",
    ),
    "TemperCallback loses NumPy's state": (
        "infrastructure/training/hf_bridge/callback.py",
        '"numpy": ("MT19937", keys, position, has_gauss, float(states["numpy_gauss"][0])),',
        '"numpy": __import__("numpy").random.RandomState(0).get_state(),',
    ),
    "TemperCallback loses half of NumPy's state": (
        "infrastructure/training/hf_bridge/callback.py",
        "position, has_gauss, float(",
        "position, 0, float(",
    ),
    "a file has its name before its bytes are on the disk": (
        "infrastructure/core/files.py",
        "            os.fsync(file.fileno())\n        part.replace",
        "\n        part.replace",
    ),
    "a file's name is not on the disk": (
        "infrastructure/core/files.py",
        "        os.close(lock)\n    sync_directory(path.parent)\n",
        "        os.close(lock)\n\n",
    ),
    "a sampler is not told what time is left": (
        "infrastructure/features/quantum/solving/quantum_step.py",
        "time_limit=deadline.seconds_left",
        "time_limit=deadline.seconds",
    ),
    "the next sampler is not told what time is left": (
        "infrastructure/features/quantum/samplers/fallback.py",
        "limit - (time.monotonic() - began)",
        "limit",
    ),
    "a training goes on one step too far after a rollback": (
        "infrastructure/training/loop/error_recovery.py",
        "state.metrics, state.output, state.batch = {}, None, ()\n        return state.step",
        "state.step += 1\n        return state.step",
    ),
    "ranks take the mean of their gradients for the sum": (
        "infrastructure/training/distributed/replicate.py",
        "group.sum([*(p.grad for p in trained",
        "group.sum([*(p.grad.div_(group.size) for p in trained",
    ),
    "ranks of a spread model take the mean of their gradients for the sum": (
        "infrastructure/training/distributed/shard.py",
        "set_gradient_divide_factor(1.0)",
        "set_gradient_divide_factor(float(dist.get_world_size()))",
    ),
    "a training goes on one example further": (
        "infrastructure/training/checkpoints/snapshot.py",
        'Position(**values["position"])',
        'Position(**{**values["position"], "example": values["position"]["example"] + 1})',
    ),
    "a training goes on with other random numbers": (
        "infrastructure/training/checkpoints/snapshot.py",
        '    restore_random(snapshot.tensors["random"], parts.device)\n',
        "\n",
    ),
    "hooks begin anew where a training goes on": (
        "infrastructure/training/checkpoints/snapshot.py",
        'parts.load_state_dict(values["loop"])',
        "pass",
    ),
    "a Trainer goes on with an optimizer that remembers nothing": (
        "infrastructure/training/hf_bridge/callback.py",
        'snapshot.tensors.get("optimizer", {})',
        "{}",
    ),
    "a Trainer goes on with its oldest version": (
        "infrastructure/training/hf_bridge/trainer_run.py",
        "return self.versions.newest()",
        "return self.versions.checkpoints()[0]",
    ),
    "a Trainer that tries again keeps the optimizer of the first try": (
        "infrastructure/training/hf_bridge/bridged_training.py",
        "        restore_optimizer(parts, snapshot)\n",
        "        pass\n",
    ),
    "prompts come in the order of the first epoch again": (
        "infrastructure/training/hf_bridge/carried_state.py",
        "generator.set_state(state)",
        "pass",
    ),
    "held-out pairs are weighed by their batch": (
        "infrastructure/training/methods/trl_training.py",
        "sum(size * value for size",
        "sum(sum(sizes) / len(sizes) * value for size",
    ),
    "the held-out loss is a mean over examples": (
        "infrastructure/training/forward/evaluation_loss.py",
        "self.num_items += num_items",
        "self.num_items += len(examples)",
    ),
    "an answer that the data leaves out is learnt": (
        "infrastructure/data/encoding/tokenization.py",
        "else mask & ~is_given",
        "else mask",
    ),
    "the token that is put behind an answer is not learnt": (
        "infrastructure/data/encoding/tokenization.py",
        "            mask[: last + 1], True\n",
        "            mask[: last + 1], False\n",
    ),
    "padding is learnt": (
        "infrastructure/data/serving/collate.py",
        "labels = np.full(shape, NO_LABEL, dtype=np.int64)",
        "labels = np.full(shape, pad_token_id, dtype=np.int64)",
    ),
    "a place's bytes are not compared with what was written": (
        "infrastructure/backup/backends/base.py",
        "if digest.hexdigest() != expected:",
        "if False:",
    ),
    "a version counts as copied that no place has confirmed": (
        "infrastructure/backup/replication/copier.py",
        "if not upload.is_confirmed:",
        "if False:",
    ),
    "damaged bytes are copied": (
        "infrastructure/backup/replication/object_reader.py",
        "if index == len(self) - 1 and digest.hexdigest() != self._digest:",
        "if False:",
    ),
    "a merged model is exported without its LoRA": (
        "infrastructure/models/lora.py",
        "tuned.merge_and_unload(safe_merge=True)",
        "tuned.unload()",
    ),
    "an export has the chat template of its base": (
        "infrastructure/deployment/export.py",
        "loaded.tokenizer.chat_template = template\n",
        "pass\n",
    ),
    "an export is written over what lies there": (
        "infrastructure/deployment/export.py",
        "    refuse_what_is_there(folder)\n    check_possible",
        "\n    check_possible",
    ),
    "an export has no SHA256SUMS": (
        "infrastructure/deployment/export.py",
        "        write_sums(part)\n",
        "\n",
    ),
    "an export is that of the newest checkpoint, whichever is named": (
        "infrastructure/deployment/export.py",
        "    if checkpoint is None:\n        checkpoint = version_of_model(run)\n",
        "    if True:\n        checkpoint = version_of_model(run)\n",
    ),
    "a rack lacks a tensor": (
        "infrastructure/models/saving.py",
        "for n, t in state.items()}, part / WEIGHTS)",
        "for n, t in list(state.items())[1:]}, part / WEIGHTS)",
    ),
    "held-out rows are measured again where a training by TRL goes on": (
        "infrastructure/deployment/method_training.py",
        "is_new=resumed is None",
        "is_new=True",
    ),
    "pieces of a batch weigh alike, however much each has to learn": (
        "infrastructure/training/forward/gradient_accumulation.py",
        "total_items=total_items\n",
        "total_items=None\n",
    ),
    "gradients are not clipped": (
        "infrastructure/training/strategies/base_strategy.py",
        "max_norm = self.config.max_grad_norm or math.inf",
        "max_norm = math.inf",
    ),
    "AdamW has other betas than ours": (
        "infrastructure/training/strategies/base_strategy.py",
        '{"betas": BETAS} if takes_betas else {}',
        "{}",
    ),
    "an update takes the schedule two steps on": (
        "infrastructure/training/strategies/base_strategy.py",
        "            scheduler.step()\n",
        "            scheduler.step(), scheduler.step()\n",
    ),
    "the schedule begins anew where a training goes on": (
        "infrastructure/training/checkpoints/snapshot.py",
        '    _restore_one("learning-rate schedule", parts.scheduler, values["scheduler"])\n',
        "\n",
    ),
    "an optimizer forgets what is no tensor": (
        "infrastructure/backup/state/optimizer_state.py",
        '[*tensors.items(), *values["values"].items()]',
        "[*tensors.items()]",
    ),
    "a Trainer goes on with the random numbers of now": (
        "infrastructure/training/hf_bridge/callback.py",
        '"cpu": states["torch"].to(torch.uint8)',
        '"cpu": torch.get_rng_state()',
    ),
    "labels stand one token too early": (
        "infrastructure/data/serving/collate.py",
        "labels[row, : lengths[row]] = _labels(example)",
        "labels[row, : lengths[row] - 1] = _labels(example)[1:]",
    ),
    "the last token of an answer is not learnt": (
        "infrastructure/data/encoding/tokenization.py",
        "else slice(first, last + 1)",
        "else slice(first, max(first + 1, last))",
    ),
    "a manifest is written to whichever place is there by now": (
        "infrastructure/backup/replication/upload.py",
        "        self.link.place.require_identity()\n",
        "\n",
    ),
    "an energy is that of the answer before it kept the rules": (
        "infrastructure/features/quantum/solving/quantum_step.py",
        "question.energies([sample])[0]",
        "float(sample_set.first.energy)",
    ),
}


def named_mutants(root: Path) -> list[Mutant]:
    """All of them, in the sources as they are.

    Raises:
        ValueError: a text does not stand in its module exactly once.
    """
    found = []
    for what, (module, old, new) in NAMED.items():
        source = (root / module).read_text()
        if source.count(old) != 1:
            raise ValueError(f"{module} has not exactly one {old!r}: rewrite {what!r}")
        start = len(source[: source.index(old)].encode())
        line = source[: source.index(old)].count("\n") + 1
        key = hashlib.sha256(what.encode()).hexdigest()[:16]
        end = start + len(old.encode())
        found.append(Mutant(module, what, "named", start, end, line, old, new, key))
    return found
