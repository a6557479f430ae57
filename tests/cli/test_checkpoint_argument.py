"""Checkpoints by an address that people can type: AGENT@latest, AGENT@12, the beginning of an id."""

from __future__ import annotations

import json

import pytest

from celery_ckpt import CheckpointStore
from celery_ckpt.testing.factories import make_checkpoint
from tests.support.cli import Commands, commands_for, tell


def shortest(checkpoint_id: str, others: list[str]) -> str:
    """The shortest beginning of an id that no other one has."""
    lengths = range(1, len(checkpoint_id) + 1)
    return next(
        checkpoint_id[:length]
        for length in lengths
        if not any(other.startswith(checkpoint_id[:length]) for other in others)
    )


def test_a_checkpoint_is_found_by_its_agent_and_iteration_or_by_a_part_of_its_id(
    any_store: CheckpointStore,
) -> None:
    commands = commands_for(any_store)
    first, second, third = tell(any_store, "ann@example.org")
    tell(any_store, "another")
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


def test_every_command_that_takes_a_checkpoint_takes_an_address(commands: Commands) -> None:
    first, _, third = tell(commands.store)
    tell(commands.store, "other")
    differ = commands("diff", "user-42@1", "user-42@latest", code=1).stdout
    assert differ.startswith(f"- {first}  iteration 1,")
    assert f"\n+ {third}  iteration 3," in differ
    assert commands("pin", "user-42@latest").stdout == f"{third}: pinned.\n"
    assert commands("pin", "user-42@latest", "--off").stdout == f"{third}: no longer pinned.\n"
    for address in ("1", "user-42@1", first, first.partition("-")[2]):
        shown = commands("show", "user-42", "--checkpoint", address, "--part", "conversation").stdout
        assert shown.startswith("Conversation: 4 messages")
    assert "agent 'other'" in commands.fails("show", "user-42", "--checkpoint", "other@1", code=66)


def test_of_several_checkpoints_of_an_iteration_it_is_the_newest(commands: Commands) -> None:
    tell(commands.store)
    newer = make_checkpoint("user-42", iteration=2)
    commands.store.save(newer)
    assert json.loads(commands("pin", "user-42@2", "--json").stdout)["id"] == newer.id


@pytest.mark.parametrize("address", ["user-42@9", "nobody@latest", "user-42@", "@", "user-42", "zz"])
def test_an_address_of_nothing_is_not_found(commands: Commands, address: str) -> None:
    tell(commands.store)
    assert f"no checkpoint {address!r}" in commands.fails("fork", address, code=66)


def test_the_beginning_of_several_ids_is_refused_with_the_ids(commands: Commands) -> None:
    first, second, third = tell(commands.store)
    start = first[:17]
    for address in (start, f"user-42@{start}"):
        line = commands.fails("fork", address, code=2)
        assert f"{address!r} matches 3 checkpoints: {third}, {second}, {first}." in line


def test_an_id_that_somebody_else_made_comes_before_an_address(commands: Commands) -> None:
    tell(commands.store)
    foreign = make_checkpoint("foreign").model_copy(update={"id": "user-42@latest"})
    commands.store.save(foreign)
    assert json.loads(commands("fork", "user-42@latest", "--json").stdout)["forked_from"] == foreign.id
    assert commands("show", "foreign", "--checkpoint", "user-42@latest", "--part", "conversation")
