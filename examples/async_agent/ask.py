"""Start several agents at once, and print their answers: ``python ask.py 20``."""

from __future__ import annotations

import sys

from celery import group
from travel import travel

count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
questions = [f"Traveller {number} asks: to Oslo or to Rome?" for number in range(count)]
for answer in group(travel.s(question) for question in questions).delay().join():
    print(answer, flush=True)
