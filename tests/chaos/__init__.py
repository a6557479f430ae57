"""Faults in loops: agents at work while their workers, servers and network fail, and a verdict."""
