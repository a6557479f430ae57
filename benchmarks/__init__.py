"""Measures the stores against bare commands, the naive way and others: ``python -m benchmarks``."""

from __future__ import annotations
