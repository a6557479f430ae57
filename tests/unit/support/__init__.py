"""``tests.support``, as far as it does not need a worker."""
