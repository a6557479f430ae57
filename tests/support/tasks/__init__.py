"""The tasks that workers execute in the tests: a module per kind of agent, named in ``include``."""
