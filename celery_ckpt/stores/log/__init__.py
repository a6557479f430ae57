"""What stores with an append-only log of messages share.

``store.py`` has ``LogStore``: how checkpoints are saved, loaded and listed, on top of a few atomic
primitives. ``draft.py`` decides what a save writes, ``ranges.py`` where messages are in the log,
``record.py`` and ``summaries.py`` read the line of a checkpoint, ``reader.py`` checks and rebuilds
checkpoints, ``rewrite.py`` writes a whole history again.

The package imports the vocabulary of the library and no store.

What must stay true: a save writes only messages that the log lacks, and is accepted only while the
checkpoint that it builds on exists. A checkpoint that is read has the digest that was saved.
"""
