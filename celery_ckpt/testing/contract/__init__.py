"""The promises of ``celery_ckpt.store`` as tests that any store can be held to.

One module for each part of the contract; ``suite`` combines them as ``StoreContract``. The tests use
the store protocol and public names only, so that a store from another package can run them too.
"""

from __future__ import annotations
