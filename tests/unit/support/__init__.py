"""``tests.support``, as far as it needs no worker."""
