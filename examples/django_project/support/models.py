"""The tables. The conversation with the model is in the agent's store, not in this database."""

from __future__ import annotations

from django.db import models


class Ticket(models.Model):
    """A customer's question, and the answer once there is one."""

    question = models.TextField()
    answer = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"ticket {self.pk}"

    @property
    def agent_id(self) -> str:
        """The name of the agent. Each ticket has one agent, and so one history."""
        return f"ticket-{self.pk}"
