"""A search that cannot work is refused in one sentence, before anything is trained."""

from pathlib import Path

import pytest

from tests.commands.test_wrong_input import Wrong, check_sentence, prepare

WRONG = [
    Wrong("a sweep of nothing", "sweep", ["sweep.without_search"]),
    Wrong(
        "a search without values",
        "sweep --search lr",
        ["sweep.search_not_key_values", "text=lr", "list_key=lr", "range_key=lr"],
    ),
    Wrong(
        "a search of blank values",
        ["sweep", "--search", "= "],
        ["sweep.search_not_key_values", "text== ", "list_key=lora_r", "range_key=learning_rate"],
    ),
    Wrong(
        "a value twice",
        "sweep --search lora_r=4,8,4",
        ["sweep.search_too_few_values", "text=lora_r=4,8,4"],
    ),
    Wrong(
        "the low end of a range",
        "sweep --search lora_r=0..4",
        ["sweep.search_value_invalid", "setting=model.lora_config.r", "value=0"],
    ),
    Wrong(
        "the high end of a range",
        "sweep --search lora_dropout=0.1..2",
        ["sweep.search_value_invalid", "setting=model.lora_config.dropout", "value=2"],
    ),
    Wrong(
        "a range of one number",
        "sweep --search lr=1..1",
        ["sweep.search_range_empty", "text=lr=1..1", "low=1", "high=1"],
    ),
    Wrong(
        "an endless range",
        "sweep --search lr=1..inf",
        ["sweep.search_not_a_number", "search=lr=1..inf", "value=inf"],
    ),
    Wrong(
        "a step of nothing",
        "sweep --search lr=1..3:0",
        ["sweep.search_step_out_of_range", "text=lr=1..3:0", "width=2"],
    ),
    Wrong(
        "a range of a switch",
        "sweep --search lora=0..1",
        ["sweep.search_range_not_numeric", "text=lora=0..1"],
    ),
    Wrong(
        "a switch that is neither on nor off",
        "sweep --search lora=true,perhaps",
        ["sweep.search_value_invalid", "perhaps"],
    ),
    Wrong(
        "an entry of a setting that has none",
        "sweep --search lora_r.x=1,2",
        ["sweep.search_unknown_key", "key=lora_r.x"],
    ),
    Wrong(
        "a search of what there is not",
        "sweep --search learn_rate=1,2",
        [
            "sweep.search_unknown_key",
            "config.unknown_key_meant",
            "key=learn_rate",
            "meant='learning_rate'",
        ],
    ),
    Wrong(
        "a search twice",
        "sweep --search lr=1,2 --search lr=3,4",
        ["sweep.search_given_twice", "name=training.learning_rate"],
    ),
    Wrong(
        "one value to search",
        "sweep --search lora_r=4",
        ["sweep.search_too_few_values", "text=lora_r=4"],
    ),
    Wrong(
        "a value that is none",
        "sweep --search lora_r=4,many",
        [
            "sweep.search_value_invalid",
            "config.wrong_value",
            "setting=model.lora_config.r",
            'value="many"',
        ],
    ),
    Wrong(
        "a range of words",
        "sweep --search optimizer=a..b",
        ["sweep.search_range_not_numeric", "text=optimizer=a..b"],
    ),
    Wrong(
        "a range that falls",
        "sweep --search lr=1e-3..1e-5",
        ["sweep.search_range_empty", "text=lr=1e-3..1e-5", "low=0.001", "high=1e-05"],
    ),
    Wrong(
        "a range of no numbers",
        "sweep --search lr=1e-5..high",
        ["sweep.search_not_a_number", "search=lr=1e-5..high", "value=high"],
    ),
    Wrong(
        "a step too wide",
        "sweep --search num_epochs=1..3:9",
        ["sweep.search_step_out_of_range", "text=num_epochs=1..3:9", "width=2"],
    ),
    Wrong(
        "a step between",
        "sweep --search embedded_num_layers=2..8:0.5",
        ["sweep.search_step_not_whole", "text=embedded_num_layers=2..8:0.5", "step=0.5"],
    ),
    Wrong(
        "a logarithm of zero",
        "sweep --search lora_dropout=0..0.5:log",
        ["sweep.search_log_range_not_positive", "text=lora_dropout=0..0.5:log"],
    ),
    Wrong(
        "JSON to search",
        ["sweep", "--search", "lora_r=[4,"],
        ["sweep.search_list_unreadable", "text=lora_r=[4,", "kind=JSON list"],
    ),
    Wrong(
        "a search without effect",
        "sweep --search log_level=INFO,DEBUG",
        ["sweep.search_setting_no_effect", "key=log_level"],
    ),
    Wrong(
        "a search of what is fixed",
        "sweep --lr 1 --search lr=1,2",
        ["sweep.search_conflicts_with_flag", "flag=--lr", "name=training.learning_rate"],
    ),
    Wrong(
        "other rows in each trial",
        "sweep --search seed=1,2",
        ["sweep.search_changes_held_out_rows", "name=training.seed"],
    ),
    Wrong(
        "other tokens in each trial",
        "sweep --search max_length=64,128",
        ["sweep.search_changes_measured_tokens", "name=data.max_length", "metric=loss"],
    ),
    Wrong("no trials", "sweep --search lr=1,2 --trials 0", ["sweep.too_few_trials", "count=0"]),
    Wrong("a new run of a sweep", "sweep --search lr=1,2 --new-run", ["sweep.new_run"]),
    Wrong(
        "a sweep without held-out data",
        "sweep --search lr=1,2 --validation-split 0",
        ["sweep.without_held_out_data"],
    ),
    Wrong(
        "a grid of endlessly many",
        "sweep --search lr=1e-5..1e-3 --sampler grid",
        ["sweep.grid_values_infinite", "search=training.learning_rate=1e-05..0.001"],
    ),
    Wrong(
        "a grid of too many",
        "sweep --search lora_r=1..2000 --sampler grid",
        ["sweep.grid_too_large", "limit=1000"],
    ),
    Wrong(
        "an architecture of a model that has its own",
        "sweep --model some/model --search embedded_num_layers=2..4",
        [
            "config.setting_without_effect",
            "config.unused_shapes_embedded_model",
            "setting=model.embedded.num_layers=2",
        ],
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what)
def test_wrong_input_ends_in_one_sentence(
    wrong: Wrong,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved_llama: Path,
) -> None:
    prepare(wrong, tmp_path, monkeypatch, saved_llama)
    check_sentence(wrong, capsys)
