"""What the tests share: servers, workers, tasks, and checks. Their own tests are in unit/support and
workers/harness.
"""
