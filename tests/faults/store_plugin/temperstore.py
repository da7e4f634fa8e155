"""A store that fsspec finds as it finds any other: by the entry point of a package. Its files lie
on this machine, so that a storm can look at them."""

from typing import Any

from fsspec.implementations.local import LocalFileSystem


class TemperStore(LocalFileSystem):
    """`temperstore:///folder`."""

    protocol = "temperstore"

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("temperstore://")))
