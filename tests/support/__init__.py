"""What the tests stand on: servers, workers, task bodies, kits. No tests; those are in unit/support
and workers/harness.
"""
