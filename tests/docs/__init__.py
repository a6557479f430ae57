"""README and docs: their code runs, nothing is missing, and the storage format is as described."""
