"""The tests. CONTRIBUTING.md says what each folder contains.

``tests`` is a package, so that a module has one name, such as ``tests.support.ledger``, in pytest, in
worker processes and in ``python -m``. Only the root of the repository is on the path. If tests/ were
there too, tests/redis would shadow the library of that name.
"""
