"""What is specific to the file store."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_ckpt import Checkpoint, FileCheckpointStore
from celery_ckpt.errors import CheckpointDamaged, SchemaTooNew, StoreDamaged, StoreError
from celery_ckpt.records import RunStatus
from celery_ckpt.retention.policy import Rules
from celery_ckpt.stores.file import journal as journal_module
from celery_ckpt.stores.findings import damage_in
from celery_ckpt.testing import make_checkpoint, make_conversation, make_message, make_run, make_step
from celery_ckpt.testing.contract.fixtures import sweep


def history(store: FileCheckpointStore, saves: int = 4, agent_id: str = "agent") -> list[Checkpoint]:
    conversation, saved = make_conversation(1), []
    for iteration in range(saves):
        conversation.append(make_message())
        saved.append(make_checkpoint(agent_id, conversation, iteration))
        store.save(saved[-1])
    return saved


def journal_of(directory: Path) -> Path:
    [path] = directory.glob("agents/*/*/journal-*")
    return path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def store(tmp_path: Path) -> FileCheckpointStore:
    return FileCheckpointStore(tmp_path)


def cold(tmp_path: Path) -> FileCheckpointStore:
    return FileCheckpointStore(tmp_path)


def test_files_and_directories_are_private_to_the_user(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "store")
    history(store)
    store.acquire("agent", "me", 60)

    paths = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert len(paths) > 6
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def test_no_name_escapes_the_directory(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "store")
    for name in ("../../escaped", "/etc/escaped", "..", "a/../../b", "\x00"):
        store.save(make_checkpoint(name))
        store.save(Checkpoint(**{**make_checkpoint(name).__dict__, "id": f"../{name}x"}))

    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"agents", "ids", "sweep"}


def test_a_save_appends_the_new_messages_and_one_line(
    store: FileCheckpointStore, tmp_path: Path
) -> None:
    conversation = make_conversation(50)
    store.save(make_checkpoint("agent", conversation))
    before = journal_of(tmp_path).read_bytes()
    conversation.append(make_message("the new one"))
    store.save(make_checkpoint("agent", conversation))

    after = journal_of(tmp_path).read_bytes()
    assert after.startswith(before)
    assert len(after) - len(before) < 300
    assert after.endswith(b'{"role":"user","content":"the new one"}\n')


def test_a_damaged_record_loses_only_its_checkpoint(store: FileCheckpointStore, tmp_path: Path) -> None:
    saved = history(store)
    lines = lines_of(journal_of(tmp_path))
    [at] = [i for i, line in enumerate(lines) if saved[1].id.encode() in line]
    lines[at] = lines[at].replace(b'"iteration":1', b'"iteration":7')
    journal_of(tmp_path).write_bytes(b"".join(lines))

    with pytest.raises(CheckpointDamaged, match=saved[1].id) as damage:
        cold(tmp_path).list("agent")
    assert list(damage.value.readable) == [saved[3], saved[2], saved[0]]
    with pytest.raises(CheckpointDamaged, match="agent 'agent'"):
        cold(tmp_path).load(saved[1].id)
    assert cold(tmp_path).load_latest("agent") == saved[3]
    assert cold(tmp_path).load(saved[0].id) == saved[0]


def test_an_unrecognisable_record_loses_only_its_checkpoint(
    store: FileCheckpointStore, tmp_path: Path
) -> None:
    saved = history(store)
    lines = lines_of(journal_of(tmp_path))
    [at] = [i for i, line in enumerate(lines) if saved[1].id.encode() in line]
    lines[at] = b"\xff\xfe nothing of it is left\n"
    journal_of(tmp_path).write_bytes(b"".join(lines))

    assert cold(tmp_path).load_latest("agent") == saved[3]
    assert cold(tmp_path).load(saved[2].id) == saved[2]
    with pytest.raises(CheckpointDamaged, match=saved[1].id):
        cold(tmp_path).load(saved[1].id)
    with pytest.raises(CheckpointDamaged, match="unreadable, in journal-00000001 at byte"):
        cold(tmp_path).list("agent")


@pytest.mark.parametrize(
    "damage", [b'{"role":"user","content":"another"}\n', b"[]\n", b"junk\n", b"{}\n"]
)
def test_a_damaged_message_loses_the_checkpoints_that_contain_it(
    store: FileCheckpointStore, tmp_path: Path, damage: bytes
) -> None:
    saved = history(store)
    lines = lines_of(journal_of(tmp_path))
    wanted = saved[2].conversation.messages[-1].to_json() + b"\n"
    lines[lines.index(wanted)] = damage
    journal_of(tmp_path).write_bytes(b"".join(lines))

    assert cold(tmp_path).load(saved[1].id) == saved[1]
    for checkpoint in saved[2:]:
        with pytest.raises(CheckpointDamaged, match=checkpoint.id):
            cold(tmp_path).load(checkpoint.id)
    with pytest.raises(CheckpointDamaged) as error:
        cold(tmp_path).load_latest("agent")
    assert error.value.checkpoint_id == saved[3].id


@pytest.mark.parametrize("cut", [1, 40, 200, 100_000])
def test_a_truncated_journal_is_detected(store: FileCheckpointStore, tmp_path: Path, cut: int) -> None:
    saved = history(store)
    whole = journal_of(tmp_path).read_bytes()
    journal_of(tmp_path).write_bytes(whole[: max(0, len(whole) - cut)])

    with pytest.raises(CheckpointDamaged, match=f"{saved[3].id} of agent 'agent'"):
        cold(tmp_path).load_latest("agent")


def test_a_missing_journal_is_detected(store: FileCheckpointStore, tmp_path: Path) -> None:
    saved = history(store)
    journal_of(tmp_path).unlink()

    with pytest.raises(CheckpointDamaged, match=saved[3].id):
        cold(tmp_path).load_latest("agent")


@pytest.mark.parametrize("name", ["journal-00000001.bak", "journal-00000001~", "journal-copy"])
def test_a_copied_journal_is_ignored_and_deleted_with_the_agent(
    store: FileCheckpointStore, tmp_path: Path, name: str
) -> None:
    saved, journal = history(store), journal_of(tmp_path)
    journal.with_name(name).write_bytes(journal.read_bytes())

    assert cold(tmp_path).load_latest("agent") == saved[3]
    assert cold(tmp_path).delete("agent") == 4
    assert list(tmp_path.rglob("journal-*")) == []


@pytest.mark.parametrize(
    "what", ["the blank after the CRC", "a letter of the id", "the line feed before"]
)
def test_a_save_with_a_damaged_line_is_detected_as_missing(
    store: FileCheckpointStore, tmp_path: Path, what: str
) -> None:
    saved = history(store)
    whole = journal_of(tmp_path).read_bytes()
    start = whole.rindex(b"#", 0, whole.index(saved[2].id.encode()))
    at = {"the blank after the CRC": start + 9, "a letter of the id": start + 24}.get(what, start - 1)
    journal_of(tmp_path).write_bytes(whole[:at] + b"~" + whole[at + 1 :])

    with pytest.raises(CheckpointDamaged):
        cold(tmp_path).list("agent")
    with pytest.raises(CheckpointDamaged):
        cold(tmp_path).load(saved[2].id)
    assert cold(tmp_path).load(saved[0].id) == saved[0]


def test_a_partially_created_directory_is_not_an_agent(
    store: FileCheckpointStore, tmp_path: Path
) -> None:
    saved = history(store)
    half = tmp_path / "agents" / "ab" / "abcdefghijklmnopqrstuvwxyz234567"
    half.mkdir(parents=True)
    (half / ".name.1234").write_bytes(b"{")

    assert list(store.agents()) == ["agent"]
    assert store.load(saved[0].id) == saved[0]


def test_a_name_in_the_wrong_directory_is_damage(store: FileCheckpointStore, tmp_path: Path) -> None:
    history(store)
    [name] = tmp_path.glob("agents/*/*/name")
    name.write_bytes(name.read_bytes().replace(b'"agent"', b'"agenu"'))

    with pytest.raises(StoreDamaged, match="it does not belong to this directory"):
        list(store.agents())
    with pytest.raises(StoreDamaged):
        store.load_latest("agent")


def test_an_unreadable_name_does_not_block_the_other_agents(
    store: FileCheckpointStore, tmp_path: Path
) -> None:
    names = [f"agent {number}" for number in range(5)]
    for agent_id in names:
        for _ in range(3):
            store.save(make_checkpoint(agent_id))
    (store._directory.path_of(names[2]) / "name").write_bytes(b"")
    others, found = [name for name in names if name != names[2]], []
    with pytest.raises(StoreDamaged):
        found.extend(store.agents())

    assert sorted(found) == others
    assert sweep(store, Rules(keep=1)) == names
    assert [len(store.list(name)) for name in others] == [1, 1, 1, 1]
    assert sweep(store, Rules(keep=1)) == [], "not before tomorrow"
    assert list(store.findings()) == []
    [finding] = damage_in(store)
    assert (finding.kind, "/name cannot be read" in finding.what) == ("damaged", True)


def test_creating_and_deleting_agents_concurrently_is_never_an_error(tmp_path: Path) -> None:
    def make_and_delete(number: int) -> int:
        own = FileCheckpointStore(tmp_path)
        for _ in range(25):
            own.save(make_checkpoint("agent"))
            own.record_step(make_step("agent", f"run {number}"))
            list(own.agents())
            own.load(make_checkpoint("agent").id)
            own.delete("agent")
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(make_and_delete, range(4))) == [0, 1, 2, 3]


def test_a_torn_save_is_ignored(store: FileCheckpointStore, tmp_path: Path) -> None:
    saved = history(store)
    with journal_of(tmp_path).open("ab") as file:
        file.write(lines_of(journal_of(tmp_path))[0] + b'{"role":"user","cont')

    again = cold(tmp_path)
    assert again.load_latest("agent") == saved[3]
    later = make_checkpoint("agent", saved[3].conversation)
    again.save(later)
    assert cold(tmp_path).list("agent") == [later, *saved[::-1]]


def test_an_agent_continues_next_to_a_damaged_checkpoint(
    store: FileCheckpointStore, tmp_path: Path
) -> None:
    saved = history(store)
    whole = journal_of(tmp_path).read_bytes()
    journal_of(tmp_path).write_bytes(whole.replace(b'"iteration":3', b'"iteration":8'))

    later = make_checkpoint("agent", saved[3].conversation)
    cold(tmp_path).save(later)

    assert cold(tmp_path).load_latest("agent") == later
    assert cold(tmp_path).prune("agent", 1) == 4
    assert cold(tmp_path).list("agent") == [later]


def test_a_newer_format_is_refused(store: FileCheckpointStore, tmp_path: Path) -> None:
    saved = history(store, saves=1)
    [name] = tmp_path.glob("agents/*/*/name")
    name.write_bytes(name.read_bytes().replace(b'"format":1', b'"format":2'))

    with pytest.raises(SchemaTooNew, match="reads up to 1"):
        list(cold(tmp_path).agents())
    with pytest.raises(SchemaTooNew):
        cold(tmp_path).load(saved[0].id)


def test_old_files_are_deleted_and_the_rest_stays_intact(
    store: FileCheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 2000)
    conversation, saved = make_conversation(0), []
    for iteration in range(40):
        conversation.append(make_message(f"{iteration:200}"))
        if iteration % 10 == 9:
            conversation.replace(conversation.messages[-2:])
        saved.append(make_checkpoint("agent", conversation, iteration))
        store.save(saved[-1])
    other = cold(tmp_path)
    assert other.list("agent") == saved[::-1]
    files = len(list(tmp_path.glob("agents/*/*/journal-*")))

    assert store.prune("agent", 3) == 37

    assert len(list(tmp_path.glob("agents/*/*/journal-*"))) < files / 2
    for any_store in (store, other, cold(tmp_path)):
        assert any_store.list("agent") == saved[:-4:-1]
    conversation.append(make_message())
    other.save(make_checkpoint("agent", conversation))
    assert len(store.list("agent")) == 4


def test_pruning_everything_in_a_large_journal_leaves_the_agent_empty(
    store: FileCheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 100)
    saved = history(store)
    store.prune("agent", 0)

    assert cold(tmp_path).load_latest("agent") is None
    assert cold(tmp_path).history("agent") == []
    cold(tmp_path).save(saved[0])
    assert cold(tmp_path).list("agent") == [saved[0]]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"junk", b'{"token": 1}'])
def test_a_damaged_lease_is_a_store_error(
    store: FileCheckpointStore, tmp_path: Path, content: bytes
) -> None:
    saved = history(store)
    store.acquire("agent", "me", 60)
    [path] = tmp_path.glob("agents/*/*/lease")
    path.write_bytes(content)

    with pytest.raises(StoreDamaged, match="lease"):
        store.holder("agent")
    with pytest.raises(StoreDamaged, match="lease"):
        store.save(make_checkpoint())
    assert store.load_latest("agent") == saved[-1]


def test_deletion_leaves_no_file(store: FileCheckpointStore, tmp_path: Path) -> None:
    history(store)
    store.save(Checkpoint(**{**make_checkpoint("agent").__dict__, "id": "foreign"}))
    store.acquire("agent", "me", 60)

    store.delete("agent")

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]  # of a schedule


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = FileCheckpointStore(tmp_path / "file" / "store")

    with pytest.raises(StoreError, match=r"The file store at .* failed"):
        store.save(make_checkpoint())


def test_the_end_of_a_run_whose_save_failed_is_not_written_by_a_later_save(
    store: FileCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = store.start_run(make_run("agent", "run"), "me", 60)
    checkpoint = make_checkpoint("agent")
    ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "append", fail)
        with pytest.raises(StoreError, match="full"):
            store.save(checkpoint, start.lease, run=ended)
    store.save(checkpoint, start.lease)

    assert store.load_latest("agent") == checkpoint
    assert store.run("agent", "run") == start.run


def test_an_agent_recreated_while_the_old_one_is_deleted_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = FileCheckpointStore(tmp_path), FileCheckpointStore(tmp_path)
    store.save(make_checkpoint("agent"))
    replacement = make_checkpoint("agent")
    rename = Path.rename

    def rename_and_be_overtaken(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if target.parent.name == "trash":
            monkeypatch.undo()
            other.save(replacement)
        return moved

    monkeypatch.setattr(Path, "rename", rename_and_be_overtaken)

    assert store.delete("agent") == 1
    assert store.load_latest("agent") == replacement
