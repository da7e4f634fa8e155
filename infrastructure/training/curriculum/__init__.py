"""Which examples each stage of a curriculum trains on."""
