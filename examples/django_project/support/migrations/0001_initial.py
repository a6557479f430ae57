"""The first tables."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """As Django wrote it."""

    initial = True

    operations = [
        migrations.CreateModel(
            name="Ticket",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("question", models.TextField()),
                ("answer", models.TextField(blank=True)),
            ],
        ),
    ]
