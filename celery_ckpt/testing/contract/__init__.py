"""The promises of ``celery_ckpt.store``, as tests for any store.

There is one module for each part of the contract; ``suite`` combines them as ``StoreContract``. The
tests use the store protocol and no internals of a store, so that a store from another package can run
them. A change of a promise begins with a test here, so that it holds for all stores.
"""

from __future__ import annotations
