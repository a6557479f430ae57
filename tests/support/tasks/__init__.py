"""What workers execute in the tests: one module for each kind of agent, named in ``include``."""
