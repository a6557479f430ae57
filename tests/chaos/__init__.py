"""Faults in loops: agents run while their workers, servers and network fail. A verdict sums up
the result.
"""
