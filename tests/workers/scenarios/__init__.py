"""Kills, deploys, outages, load: whatever happens, a run ends as if nothing had happened."""
