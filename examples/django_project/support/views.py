"""Open a ticket, and show a ticket."""

from __future__ import annotations

from functools import partial
from typing import Any

from desk.celery import app
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from celery_ckpt import Agents
from celery_ckpt.errors import AgentNotFound
from support.models import Ticket
from support.tasks import answer_ticket


@require_POST
def tickets(request: HttpRequest) -> JsonResponse:
    """Open a ticket. Its agent starts when the transaction is committed."""
    with transaction.atomic():
        opened = Ticket.objects.create(question=request.POST["question"])
        start = partial(answer_ticket.apply_async, (opened.pk,), agent_id=opened.agent_id)
        transaction.on_commit(start)
    return JsonResponse({"number": opened.pk, "agent_id": opened.agent_id}, status=202)


def ticket(request: HttpRequest, number: int) -> JsonResponse:
    """Return a ticket, its answer, and the progress of its agent."""
    found = get_object_or_404(Ticket, pk=number)
    progress = _progress(found.agent_id)
    # Read after the status: an agent that has ended has written its answer before.
    found.refresh_from_db()
    return JsonResponse({"question": found.question, "answer": found.answer, "agent": progress})


def _progress(agent_id: str) -> dict[str, Any] | None:
    try:
        agent = Agents(app).status(agent_id)
    except AgentNotFound:
        return None
    return agent.model_dump(mode="json", include={"status", "iteration", "attempts", "error"})
