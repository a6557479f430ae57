"""Agents in a form for people. The CLI uses it, and any other front end can.

``transcript`` turns messages of every provider into text, ``diff`` compares two checkpoints, and
``follower`` finds what is new about an agent since the last look.

Views import the vocabulary and the store protocol. They write nothing and print nothing.
"""

from __future__ import annotations
