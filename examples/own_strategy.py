"""A user-defined training strategy: first the output layer, then everything (arXiv 2202.10054).

cd examples && temper train --strategy own_strategy:HeadFirst --settings '{"head_epochs": 1}'
python examples/own_strategy.py
"""

import json
from pathlib import Path

import temper


class HeadFirst(temper.StandardTrainingStrategy):
    def phases(self, model, num_epochs):
        first = min(self.config.head_epochs, num_epochs - 1)
        if first < 1:
            return super().phases(model, num_epochs)
        head = {id(parameter) for parameter in model.get_output_embeddings().parameters()}
        names = frozenset(name for name, p in model.named_parameters() if id(p) in head)
        return [temper.Phase("head", first, names), temper.Phase("all", num_epochs - first)]


if __name__ == "__main__":
    temper.register_strategy("head_first", HeadFirst)
    rows = [{"prompt": f"{n} + 1", "completion": f"{n + 1}"} for n in range(40)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = {"strategy": "head_first", "settings": {"head_epochs": 1}, "num_epochs": 2}
    config = temper.DeploymentConfig(data_path="rows.jsonl", training={**own, "batch_size": 8})
    temper.TrainingDeployment(config).run()
