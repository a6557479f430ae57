"""Tickets, and the agent that answers them."""
