"""A helper process that says what it knows of a name that its parent has registered."""

import json
import sys

from infrastructure.core.registry import Registry, registered_addresses


def main() -> None:
    group, name = sys.argv[1:]
    registry: Registry[type] = Registry("sink", group)
    known = [
        registry.get(name).__name__,
        registry.is_own(name),
        registry.names(),
        name in registered_addresses(),  # for helpers of its own
    ]
    print(json.dumps(known))


if __name__ == "__main__":
    main()
