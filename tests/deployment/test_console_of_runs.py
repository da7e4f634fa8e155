"""What a run shows before its first step, and what it costs."""

import json
from pathlib import Path

from infrastructure.core.price import parse_price
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.deployment.runs import small_config, write_rows

MOST_LINES = 15  # of them the command itself shows one, "Loading PyTorch"
DETAILS = (
    "length in tokens",
    "data.tasks(",
    "data.prepared_in(",
    "Disk: ",
    "Quantum step: looking at",
)


def test_a_screen_is_not_filled_before_the_first_step_and_the_cost_is_known(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    config = small_config(tmp_path, max_steps=2)
    config.price_per_hour = "2.50 EUR"
    summary = TrainingDeployment(config, lines.append).run()
    first = next(
        i for i, line in enumerate(lines) if line.startswith("deployment.training_starts(")
    )
    assert first + 2 <= MOST_LINES
    assert not [line for line in lines if line.startswith(DETAILS)]
    forecast = next(line for line in lines if line.startswith("deployment.forecast_summary"))
    assert "cost=, so about 0.0" in forecast
    assert " EUR," in forecast
    cost = summary["cost"]
    assert cost["price_per_hour"] == "2.5 EUR"
    assert cost["amount"] == parse_price("2.5").amount(cost["seconds"]) > 0
    assert cost["seconds"] > summary["seconds"]
    assert any(line.startswith(f"run.total_cost(cost={cost['text']}, ") for line in lines)
    run = Path(summary["paths"]["run"])
    assert json.loads((run / "summary.json").read_text())["cost"] == cost
    page = (run / "report.html").read_text()
    assert f">{cost['text']}<" in page
    assert "data.length_quantiles" in page, "what is not shown is in the report"


def test_all_of_it_is_shown_to_who_wants_to_know(tmp_path: Path) -> None:
    lines: list[str] = []
    config = small_config(tmp_path)
    data = write_rows(Path(str(config.data.path)))
    long = {"prompt": "Count", "completion": " ".join(map(str, range(100)))}
    data.write_text(f"{data.read_text()}\n{json.dumps(long)}\n")
    config.verbose = True
    deployment = TrainingDeployment(config, lines.append)
    deployment._prepare()
    assert {detail for detail in DETAILS[:3] for line in lines if line.startswith(detail)}
    assert not any(line.startswith("run.total_cost(") for line in lines)
    [cut] = [line for line in lines if "data.rows_truncated" in line]
    assert "max_length=64" in cut  # it has 64 positions
