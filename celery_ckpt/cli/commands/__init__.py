"""The commands of ``celery ckpt``: one module for each command or small family of commands.

``celery_ckpt.cli.main`` imports a module when one of its commands is called. A command reads its
options, calls ``Agents`` or a store, and prints through ``celery_ckpt.cli.output``. No command imports
another.
"""

from __future__ import annotations
