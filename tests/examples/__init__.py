"""The programs in examples/, with real workers that are killed."""
