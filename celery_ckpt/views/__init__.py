"""An agent as people read it: the CLI uses it, and so can any other front end.

``transcript`` turns messages of every provider into text, ``diff`` compares two checkpoints, and
``follower`` finds what is new about an agent since the last look.

Views read the vocabulary and a store. They write nothing, print nothing and know no terminal.
"""

from __future__ import annotations
