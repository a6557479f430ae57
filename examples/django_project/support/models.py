"""What the database knows. The conversation with the model is not in it: the agent's store has it."""

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
        """The agent that works on it: one name, so that each ticket has one history."""
        return f"ticket-{self.pk}"
