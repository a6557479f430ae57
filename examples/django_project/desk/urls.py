"""Two JSON endpoints."""

from __future__ import annotations

from django.urls import path
from support import views

urlpatterns = [
    path("tickets", views.tickets),
    path("tickets/<int:number>", views.ticket),
]
