"""Names are looked up, and wrong ones get the nearest right one."""

import pytest

from infrastructure.core.lookup import look_up, nearest, unknown_name


def test_a_known_name_gives_its_value() -> None:
    assert look_up("colour", "red", {"red": 1, "blue": 2}) == 1


def test_a_misspelt_name_gets_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match=r"what=colour, name=bleu, .*did_you_mean\(meant=blue\)"):
        look_up("colour", "bleu", {"red": 1, "blue": 2})
    assert (
        unknown_name("colour", "xyz", ["red"])
        == "core.unknown_name(what=colour, name=xyz, hint=, known=red)"
    )
    many = ["red", "reed", "green", "blue"]
    listed = "hint=core.did_you_mean(meant=reed), known=reed, green, more=2"
    sentence = f"core.unknown_name_of_many(what=colour, name=ree, {listed})"
    assert unknown_name("colour", "ree", many, 2) == sentence
    all_of_them = "hint=core.did_you_mean(meant=reed), known=blue, green, red, reed)"
    assert unknown_name("colour", "ree", many, 4) == (
        f"core.unknown_name(what=colour, name=ree, {all_of_them}"
    )
    named = unknown_name("colour", "xyz", many, ("red", "blue"))
    assert (
        named == "core.unknown_name_of_many(what=colour, name=xyz, hint=, known=red, blue, more=2)"
    )
    assert unknown_name("colour", "xyz", []) == "core.unknown_name_of_none(what=colour, name=xyz)"


def test_what_reads_like_nothing_has_no_nearest() -> None:
    assert nearest("zzz", ["red", "blue"]) is None


@pytest.mark.parametrize(
    ("name", "choices", "meant"),
    [
        ("--batchsize", ["--batch-size", "--block-size"], "--batch-size"),
        ("warmup", ["warmup_steps", "max_steps"], "warmup_steps"),
        ("--save-steps", ["--max-steps", "--warmup-steps"], None),
        ("--modle", ["--mode", "--model"], "--model"),
        ("resum", ["train", "resume"], "resume"),
        ("--batch-sizes", ["--batch-size", "--base-model"], "--batch-size"),
        ("--fsdp", ["--seed", "--lora"], None),
        ("--lr", ["--lora", "--lora-r"], None),
        ("TEMPER_FSDP", ["TEMPER_SEED"], None),
        ("TEMPER_DEVISE", ["TEMPER_DEVICE", "TEMPER_SEED"], "TEMPER_DEVICE"),
        (
            "20260101-000000-a-12",
            ["20260101-000000-a-11", "20250101-000000-b"],
            "20260101-000000-a-11",
        ),
        ("trian.jsonl", ["train.jsonl", "heldout.jsonl"], "train.jsonl"),
        ("", ["seed"], None),
        ("res", ["resume"], None),
        ("warm", ["warmup_ratio_of_steps"], "warmup_ratio_of_steps"),
        ("war", ["warmup_ratio_of_steps"], None),
        ("abcd-12", ["abcd-11"], "abcd-11"),  # one of six letters is another
        ("abc-12", ["abc-11"], None),
        ("abcd-12", ["abcd-34"], None),
        ("ab_dc", ["ab_cx", "ab_cd"], "ab_cd"),
    ],
)
def test_a_hint_is_a_slip_of_the_keyboard_or_none(
    name: str, choices: list[str], meant: str | None
) -> None:
    assert nearest(name, choices) == meant
