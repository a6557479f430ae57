"""Agents on Celery: the only part that imports Celery."""
