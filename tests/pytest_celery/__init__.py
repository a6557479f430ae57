"""Agents through pytest-celery, on containers or, without a Docker engine, on processes."""
