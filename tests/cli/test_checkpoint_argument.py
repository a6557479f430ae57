"""The ways to name a checkpoint: AGENT@latest, AGENT@12, a prefix of its id."""

from __future__ import annotations

import json

import pytest

from celery_ckpt import CheckpointStore
from celery_ckpt.testing.factories import make_checkpoint
from tests.support.cli import Commands, add_agent, commands_for


def shortest(checkpoint_id: str, others: list[str]) -> str:
    """Return the shortest unique prefix of an id."""
    lengths = range(1, len(checkpoint_id) + 1)
    return next(
        checkpoint_id[:length]
        for length in lengths
        if not any(other.startswith(checkpoint_id[:length]) for other in others)
    )


def test_a_checkpoint_is_found_by_agent_and_iteration_or_by_part_of_its_id(
    any_store: CheckpointStore,
) -> None:
    commands = commands_for(any_store)
    first, second, third = add_agent(any_store, "ann@example.org")
    add_agent(any_store, "another")
    unique = shortest(second, [first, third])
    for address, checkpoint_id in {
        "ann@example.org@latest": third,
        "ann@example.org@2": second,
        f"ann@example.org@{unique}": second,
        f"ann@example.org@{unique.partition('-')[2]}": second,
        unique: second,
        second: second,
    }.items():
        forked = json.loads(commands("fork", address, "--json").stdout)
        assert forked["forked_from"] == checkpoint_id, address


def test_every_command_with_a_checkpoint_argument_accepts_every_form(commands: Commands) -> None:
    first, _, third = add_agent(commands.store)
    add_agent(commands.store, "other")
    differ = commands("diff", "user-42@1", "user-42@latest", code=1).stdout
    assert differ.startswith(f"- {first}  iteration 1,")
    assert f"\n+ {third}  iteration 3," in differ
    assert commands("pin", "user-42@latest").stdout == f"{third}: pinned.\n"
    assert commands("pin", "user-42@latest", "--off").stdout == f"{third}: no longer pinned.\n"
    for address in ("1", "user-42@1", first, first.partition("-")[2]):
        shown = commands("show", "user-42", "--checkpoint", address, "--part", "conversation").stdout
        assert shown.startswith("Conversation: 4 messages")
    assert "agent 'other'" in commands.fails("show", "user-42", "--checkpoint", "other@1", code=66)


def test_an_iteration_means_its_latest_checkpoint(commands: Commands) -> None:
    add_agent(commands.store)
    newer = make_checkpoint("user-42", iteration=2)
    commands.store.save(newer)
    assert json.loads(commands("pin", "user-42@2", "--json").stdout)["id"] == newer.id


@pytest.mark.parametrize("address", ["user-42@9", "unknown@latest", "user-42@", "@", "user-42", "zz"])
def test_a_name_that_matches_nothing_is_not_found(commands: Commands, address: str) -> None:
    add_agent(commands.store)
    assert f"no checkpoint {address!r}" in commands.fails("fork", address, code=66)


def test_an_ambiguous_prefix_is_refused_and_lists_the_ids(commands: Commands) -> None:
    first, second, third = add_agent(commands.store)
    start = first[:17]
    for address in (start, f"user-42@{start}"):
        line = commands.fails("fork", address, code=2)
        assert f"{address!r} matches 3 checkpoints: {third}, {second}, {first}." in line


def test_a_foreign_id_takes_precedence_over_other_forms(commands: Commands) -> None:
    add_agent(commands.store)
    foreign = make_checkpoint("foreign").model_copy(update={"id": "user-42@latest"})
    commands.store.save(foreign)
    assert json.loads(commands("fork", "user-42@latest", "--json").stdout)["forked_from"] == foreign.id
    assert commands("show", "foreign", "--checkpoint", "user-42@latest", "--part", "conversation")
