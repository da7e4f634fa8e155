"""A place that cannot be read is refused with what it is: a dead link, an address, damage."""

from pathlib import Path

import datasets
import pytest

from infrastructure.data.readers.sources import discover

ROWS = [{"prompt": str(number), "answer": "A"} for number in range(100)]


def test_a_link_to_nothing_is_reported_as_that(tmp_path: Path) -> None:
    link = tmp_path / "data" / "train.jsonl"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "gone.jsonl")
    for place in (link, link.parent):
        with pytest.raises(ValueError, match=r"data\.broken_link\(.*train\.jsonl.*gone\.jsonl"):
            discover(str(place))
    link.rename(link.with_name("notes.bin"))  # no data by its name: as if it were not there
    (link.parent / "a.jsonl").write_text('{"a": "1"}\n')
    (file,) = discover(str(link.parent))
    assert file.name == "a.jsonl"


ADDRESSES = {
    "https://me:pass@host.org/a/train.jsonl?sig=pass#x": "https://host.org/a/train.jsonl",
    "http://host.org": "http://host.org/",
    "https:/me:pass@host.org/train.jsonl": "https://host.org/train.jsonl",
    "HTTPS://me:p@ss@host.org/train.jsonl": "HTTPS://host.org/train.jsonl",
    "s3://bucket/train.jsonl": "s3://bucket/train.jsonl",
    "https://host.org/hf_passPASS123passPASS123pass/a": "https://host.org/***",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(ValueError, match=r"data\.url_instead_of_file") as raised:
        discover(address)
    assert f"url={ADDRESSES[address].removesuffix('/***')}" in str(raised.value)
    assert "pass" not in str(raised.value)


DAMAGE = {
    "state.json": lambda path: path.write_text("{"),
    "dataset_info.json": lambda path: path.write_text("{,}"),
    "data-00000-of-00001.arrow": lambda path: path.write_bytes(path.read_bytes()[:-400]),
}


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_saved_data_set_is_named(tmp_path: Path, name: str, remove: bool) -> None:
    saved = tmp_path / "saved"
    datasets.Dataset.from_list(ROWS).save_to_disk(str(saved))
    (saved / name).unlink() if remove else DAMAGE[name](saved / name)
    with pytest.raises(ValueError, match=r"data\.saved_dataset_damaged") as raised:
        [list(file.rows()) for file in discover(str(saved))]
    assert f"folder={saved}" in str(raised.value)
