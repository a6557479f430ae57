"""Faults, one file for each: kills, deploys, outages, load. A run must end as an undisturbed run does.

Most scenarios do not depend on the broker and run on Redis only. A decorator of
``tests.support.workers.scenario`` says which ones also run on RabbitMQ.
"""
