"""rekey, and export from an encrypted store."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from celery_ckpt import CheckpointStore, MemoryCheckpointStore, open_store
from celery_ckpt.stores.encrypted import EncryptedStore
from tests.support.cli import Commands, Process, add_agent, commands_for

OLD, NEW = (f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("oldk", "newk"))


def with_keys(store: CheckpointStore, *keys: str) -> Commands:
    return commands_for(EncryptedStore(store, keys))


def test_rekey_encrypts_everything_with_the_first_key(any_store: CheckpointStore) -> None:
    before = EncryptedStore(any_store, [OLD])
    for name in ("one", "two"):
        add_agent(before, name)
    commands = with_keys(any_store, NEW, OLD)

    dry = commands("rekey", "--dry-run").stdout.splitlines()
    assert sorted(dry[:2]) == [f"{name}: 3 checkpoints, 3 steps, 1 run" for name in ("one", "two")]
    assert dry[2] == "Checked 2 agents, 2 would change."
    assert commands("rekey", "one").stdout.endswith("Checked 1 agent, 1 changed.\n")
    assert "Checked 2 agents, 1 changed." in commands("rekey").stdout
    assert commands("rekey").stdout == "Checked 2 agents, 0 changed.\n"

    assert len(EncryptedStore(any_store, [NEW]).list("two")) == 3


def test_rekey_prints_json_for_each_agent() -> None:
    inner = MemoryCheckpointStore()
    add_agent(EncryptedStore(inner, [OLD]))
    [line] = with_keys(inner, NEW, OLD)("rekey", "--json").stdout.splitlines()
    counts = {"checkpoints": 3, "steps": 3, "runs": 1}
    assert json.loads(line) == {"agent_id": "user-42", **counts, "error": None}


def test_plain_text_is_encrypted_only_on_request() -> None:
    inner = MemoryCheckpointStore()
    add_agent(inner)
    commands = with_keys(inner, NEW)
    result = commands("rekey", code=65)
    assert "is not encrypted" in result.stderr
    assert "--from-plaintext" in result.stderr
    assert "Checked 1 agent, 0 changed." in result.stdout
    commands("rekey", "--from-plaintext")
    assert "Why is the sky blue?" in commands("show", "user-42").stdout


def test_a_busy_agent_is_reported_and_does_not_stop_the_others() -> None:
    inner = MemoryCheckpointStore()
    for name in ("busy", "idle"):
        add_agent(EncryptedStore(inner, [OLD]), name)
    lease = inner.acquire("busy", "a worker", 60)
    commands = with_keys(inner, NEW, OLD)
    result = commands("rekey", code=75)
    assert "a worker holds the lease of agent 'busy'" in result.stderr
    assert "Checked 2 agents, 1 changed." in result.stdout
    inner.release(lease)
    assert "Checked 2 agents, 1 changed." in commands("rekey").stdout


def test_a_missing_old_key_is_named() -> None:
    inner = MemoryCheckpointStore()
    add_agent(EncryptedStore(inner, [OLD]))
    for command in (["rekey"], ["show", "user-42"], ["list"]):
        assert "with the key 'oldk'" in with_keys(inner, NEW)(*command, code=78).stderr


def test_rekey_reports_an_unknown_agent() -> None:
    commands = with_keys(MemoryCheckpointStore(), NEW)
    assert "'unknown'" in commands("rekey", "unknown", code=66).stderr


def test_rekey_without_keys_is_a_configuration_error() -> None:
    assert "ckpt_encryption_keys is not set" in commands_for("memory://").fails("rekey", code=78)


def test_encrypted_agents_are_not_shown_without_a_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url, encryption_keys=[OLD]) as store:
        add_agent(store)
    assert "is encrypted with the key 'oldk'" in commands_for(url).fails("show", "user-42", code=78)
    assert (
        "Why is the sky blue?" in commands_for(url, ckpt_encryption_keys=OLD)("show", "user-42").stdout
    )


def test_an_export_warns_that_it_is_plain_text_and_an_import_encrypts(tmp_path: Path) -> None:
    store, file = MemoryCheckpointStore(), tmp_path / "exported"
    add_agent(EncryptedStore(store, [OLD]))
    output = with_keys(store, OLD)("export", "-o", str(file)).stderr
    assert output.startswith("Note: the store is encrypted, but the export is not.")
    assert "Why is the sky blue?" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    other = MemoryCheckpointStore()
    with_keys(other, NEW)("import", str(file))
    assert EncryptedStore(other, [NEW]).list("user-42") == EncryptedStore(store, [OLD]).list("user-42")


def test_a_terminal_shows_progress(
    process: Process, process_store: CheckpointStore, tmp_path: Path
) -> None:
    add_agent(process_store)
    project = tmp_path / "proj.py"
    project.write_text(f"{project.read_text()}app.conf.ckpt_encryption_keys = [{NEW!r}]\n")
    code, written = process.on_a_terminal("rekey", "--from-plaintext")
    assert code == 0
    assert "rekeying agents" in written
    assert "Checked 1 agent, 1 changed." in written
