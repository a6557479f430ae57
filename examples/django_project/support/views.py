"""Open a ticket, look at a ticket."""

from __future__ import annotations

from functools import partial

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
    """Open a ticket. Its agent starts once the ticket is really in the database."""
    with transaction.atomic():
        opened = Ticket.objects.create(question=request.POST["question"])
        start = partial(answer_ticket.apply_async, (opened.pk,), agent_id=opened.agent_id)
        transaction.on_commit(start)
    return JsonResponse({"number": opened.pk, "agent_id": opened.agent_id}, status=202)


def ticket(request: HttpRequest, number: int) -> JsonResponse:
    """A ticket, its answer, and how far its agent is."""
    found = get_object_or_404(Ticket, pk=number)
    shown = {"question": found.question, "answer": found.answer}
    try:
        agent = Agents(app).status(found.agent_id)
    except AgentNotFound:
        return JsonResponse({**shown, "agent": None})
    progress = agent.model_dump(mode="json", include={"status", "iteration", "attempts", "error"})
    return JsonResponse({**shown, "agent": progress})
