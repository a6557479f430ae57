"""Forged, torn and mixed-up bytes for everything that decodes: ``make fuzz``, and a short form
as tests.
"""
