"""rekey, and export from a store that is encrypted."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from celery_ckpt import CheckpointStore, MemoryCheckpointStore, open_store
from celery_ckpt.stores.encrypted import EncryptedStore
from tests.support.cli import Commands, Process, commands_for, tell

OLD, NEW = (f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("oldk", "newk"))


def with_keys(store: CheckpointStore, *keys: str) -> Commands:
    return commands_for(EncryptedStore(store, keys))


def test_everything_gets_the_first_key(any_store: CheckpointStore) -> None:
    before = EncryptedStore(any_store, [OLD])
    for name in ("one", "two"):
        tell(before, name)
    commands = with_keys(any_store, NEW, OLD)

    dry = commands("rekey", "--dry-run").stdout.splitlines()
    assert sorted(dry[:2]) == [f"{name}: 3 checkpoints, 3 steps, 1 run" for name in ("one", "two")]
    assert dry[2] == "Checked 2 agents, 2 would change."
    assert commands("rekey", "one").stdout.endswith("Checked 1 agent, 1 changed.\n")
    assert "Checked 2 agents, 1 changed." in commands("rekey").stdout
    assert commands("rekey").stdout == "Checked 2 agents, 0 changed.\n"

    assert len(EncryptedStore(any_store, [NEW]).list("two")) == 3


def test_programs_are_told_of_each_agent() -> None:
    inner = MemoryCheckpointStore()
    tell(EncryptedStore(inner, [OLD]))
    [line] = with_keys(inner, NEW, OLD)("rekey", "--json").stdout.splitlines()
    counts = {"checkpoints": 3, "steps": 3, "runs": 1}
    assert json.loads(line) == {"agent_id": "user-42", **counts, "error": None}


def test_plain_text_is_encrypted_only_if_that_is_asked_for() -> None:
    inner = MemoryCheckpointStore()
    tell(inner)
    commands = with_keys(inner, NEW)
    result = commands("rekey", code=65)
    assert "is not encrypted" in result.stderr
    assert "--from-plaintext" in result.stderr
    assert "Checked 1 agent, 0 changed." in result.stdout
    commands("rekey", "--from-plaintext")
    assert "Why is the sky blue?" in commands("show", "user-42").stdout


def test_an_agent_at_work_is_named_and_does_not_keep_the_others() -> None:
    inner = MemoryCheckpointStore()
    for name in ("busy", "idle"):
        tell(EncryptedStore(inner, [OLD]), name)
    lease = inner.acquire("busy", "a worker", 60)
    commands = with_keys(inner, NEW, OLD)
    result = commands("rekey", code=75)
    assert "Agent 'busy' is being worked on by a worker" in result.stderr
    assert "Checked 2 agents, 1 changed." in result.stdout
    inner.release(lease)
    assert "Checked 2 agents, 1 changed." in commands("rekey").stdout


def test_without_the_old_key_it_is_said_which_one_is_missing() -> None:
    inner = MemoryCheckpointStore()
    tell(EncryptedStore(inner, [OLD]))
    for command in (["rekey"], ["show", "user-42"], ["list"]):
        assert "with the key 'oldk'" in with_keys(inner, NEW)(*command, code=78).stderr


def test_who_is_not_there_is_not_found() -> None:
    commands = with_keys(MemoryCheckpointStore(), NEW)
    assert "'nobody'" in commands("rekey", "nobody", code=66).stderr


def test_without_keys_there_is_nothing_to_do() -> None:
    assert "ckpt_encryption_keys is not set" in commands_for("memory://").fails("rekey", code=78)


def test_what_is_encrypted_and_has_no_key_here_is_not_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url, encryption_keys=[OLD]) as store:
        tell(store)
    assert "is encrypted with the key 'oldk'" in commands_for(url).fails("show", "user-42", code=78)
    assert (
        "Why is the sky blue?" in commands_for(url, ckpt_encryption_keys=OLD)("show", "user-42").stdout
    )


def test_an_export_says_that_it_is_plain_and_an_import_encrypts(tmp_path: Path) -> None:
    store, file = MemoryCheckpointStore(), tmp_path / "exported"
    tell(EncryptedStore(store, [OLD]))
    told = with_keys(store, OLD)("export", "-o", str(file)).stderr
    assert told.startswith("Note: the store is encrypted, but the export is not.")
    assert "Why is the sky blue?" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    other = MemoryCheckpointStore()
    with_keys(other, NEW)("import", str(file))
    assert EncryptedStore(other, [NEW]).list("user-42") == EncryptedStore(store, [OLD]).list("user-42")


def test_a_terminal_shows_how_far_it_is(
    process: Process, process_store: CheckpointStore, tmp_path: Path
) -> None:
    tell(process_store)
    project = tmp_path / "proj.py"
    project.write_text(f"{project.read_text()}app.conf.ckpt_encryption_keys = [{NEW!r}]\n")
    code, written = process.on_a_terminal("rekey", "--from-plaintext")
    assert code == 0
    assert "rekeying agents" in written
    assert "Checked 1 agent, 1 changed." in written
