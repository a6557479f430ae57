"""What the stores with an append-only log of messages share."""
