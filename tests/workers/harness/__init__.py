"""Tests of ``tests.support.workers``: its workers do what they claim to do."""
