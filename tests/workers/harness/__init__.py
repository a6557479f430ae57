"""``tests.support.workers``: that its workers are what they seem to be."""
