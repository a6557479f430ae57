"""The tests; CONTRIBUTING.md says what each folder has.

A package: a module has one name, such as ``tests.support.ledger``, in pytest, in worker processes and
behind ``python -m``. Only the root of the repository is on the path. With tests/ there too, tests/redis
would come before the library.
"""
