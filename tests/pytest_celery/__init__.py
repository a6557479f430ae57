"""Agents with pytest-celery, in containers or, without a Docker engine, in processes."""
