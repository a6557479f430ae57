"""Bad input to every command: one line that says what to do, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_ckpt import MemoryCheckpointStore, open_store
from celery_ckpt.cli.main import COMMANDS
from celery_ckpt.stores.redis import addresses
from tests.support.cli import Commands, add_agent, commands_for
from tests.support.servers.valkey import Valkey, free_port

#: Each command, with arguments that name something that does not exist.
UNKNOWN = {
    "show": ["show", "unknown"],
    "tail": ["tail", "unknown"],
    "resume": ["resume", "unknown"],
    "cancel": ["cancel", "unknown"],
    "delete": ["delete", "unknown", "--yes"],
    "export": ["export", "unknown"],
    "prune": ["prune", "unknown", "--keep", "1"],
    "pin": ["pin", "nothing"],
    "diff": ["diff", "nothing", "nothing"],
    "fork": ["fork", "nothing"],
}
#: The other commands.
FREE = {
    "list": ["list"],
    "doctor": ["doctor"],
    "rekey": ["rekey"],
    "bench": ["bench"],
    "import": ["import", "-"],
}
#: The options that a command needs before it connects to the store.
NEEDED = {"rekey": {"ckpt_encryption_keys": ["A" * 43]}}


def test_every_command_is_tested_with_bad_input() -> None:
    assert {*UNKNOWN, *FREE} == {*COMMANDS}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_agent_or_checkpoint_is_not_found(commands: Commands, name: str) -> None:
    line = commands.fails(*UNKNOWN[name], code=66)
    assert "'unknown'" in line or "'nothing'" in line


@pytest.mark.parametrize(
    "arguments", [*UNKNOWN.values(), ["rekey", "unknown"]], ids=lambda given: given[0]
)
def test_a_not_found_error_names_the_store_without_its_password(
    arguments: list[str], valkey: Valkey, redis_url: str
) -> None:
    with valkey.client() as client:
        client.acl_setuser("ann", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    url = redis_url.replace("redis://", "redis://ann:secret@")
    conf = NEEDED.get(arguments[0], {})
    line = commands_for(f"{url}?protocol=3", **conf).fails(*arguments, code=66)
    assert f" in the store at {redis_url}." in line
    assert "secret" not in line


def test_any_path_is_named_in_the_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ann@home.db"
    open_store(url).close()
    assert f" in the store at {url}." in commands_for(url).fails("show", "unknown", code=66)


@pytest.mark.parametrize("arguments", [*UNKNOWN.values(), *FREE.values()], ids=lambda given: given[0])
def test_a_wrong_url_is_a_configuration_error(arguments: list[str]) -> None:
    line = commands_for("mongodb://user:secret@host").fails(*arguments, code=78)
    assert "ckpt_store_url" in line
    assert "redis://" in line
    assert "secret" not in line


def test_a_missing_url_is_a_configuration_error() -> None:
    assert "ckpt_store_url is not set" in commands_for(None).fails("list", code=78)


def test_without_an_app_the_error_says_how_to_name_one() -> None:
    nobodys = Commands(Celery("default", set_as_current=False))
    line = nobodys.fails("list", code=78)
    assert "celery -A proj ckpt" in line
    assert "--store URL" in line


def test_a_file_store_that_is_not_a_directory_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    line = commands_for(f"file://{tmp_path}/taken").fails("list", code=78)
    assert "taken is not a directory" in line


def test_a_database_that_is_a_directory_is_a_configuration_error(tmp_path: Path) -> None:
    line = commands_for(f"sqlite:///{tmp_path}").fails("list", code=78)
    assert "is a directory" in line


#: The commands that do not write to a new store.
LOOKING = [given for name, given in {**UNKNOWN, **FREE}.items() if name not in ("bench", "import")]


@pytest.mark.parametrize("scheme", ["sqlite:///", "file://"])
@pytest.mark.parametrize("arguments", LOOKING, ids=lambda given: given[0])
def test_reading_commands_do_not_create_a_missing_store(
    arguments: list[str], scheme: str, tmp_path: Path
) -> None:
    commands = commands_for(f"{scheme}{tmp_path}/typo/store", **NEEDED.get(arguments[0], {}))
    line = commands.fails(*arguments, code=66)
    assert f"no store at {tmp_path}/typo/store" in line
    assert list(tmp_path.iterdir()) == []


def test_bench_creates_a_missing_store(tmp_path: Path) -> None:
    commands_for(f"sqlite:///{tmp_path}/new/store.db")("bench", "--rounds", "1")
    assert (tmp_path / "new" / "store.db").exists()


def test_the_error_names_a_misspelt_setting() -> None:
    commands = commands_for("memory://")
    commands.app.conf.ckpt_kep = 3
    assert "Did you mean ckpt_keep?" in commands.fails("list", code=78)


@pytest.fixture
def no_retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do not wait for an unavailable store."""
    monkeypatch.setattr(addresses, "retry", lambda **_: Retry(NoBackoff(), 0))
    return


@pytest.mark.usefixtures("no_retries")
@pytest.mark.parametrize("arguments", [*UNKNOWN.values(), *FREE.values()], ids=lambda given: given[0])
def test_an_unavailable_store_exits_with_69(arguments: list[str], tmp_path: Path) -> None:
    if arguments[0] == "import":
        commands = commands_for(MemoryCheckpointStore())
        add_agent(commands.store)
        commands("export", "-o", str(tmp_path / "exported"))
        arguments = ["import", str(tmp_path / "exported")]
    conf = NEEDED.get(arguments[0], {})
    line = commands_for(f"redis://127.0.0.1:{free_port()}/0", **conf).fails(*arguments, code=69)
    assert "did not answer" in line


def test_the_store_can_be_named_on_the_command_line(commands: Commands, tmp_path: Path) -> None:
    open_store(url := f"sqlite:///{tmp_path}/other.db").close()
    assert "no agents" in commands_for(None)("--store", url, "list").stdout
    assert "Unknown store scheme 'x'" in commands_for(None).fails("--store", "x://", "list", code=78)


def test_an_invalid_name_is_wrong_usage(commands: Commands) -> None:
    assert "512" in commands.fails("show", "x" * 513, code=2)


def test_a_fork_with_an_empty_name_is_wrong_usage(commands: Commands) -> None:
    [*_, latest] = add_agent(commands.store)
    assert "1 to 512" in commands.fails("fork", latest, "--as", "", code=2)
    assert list(commands.store.agents()) == ["user-42"]


def test_an_agent_with_a_held_lease_is_busy(commands: Commands, tmp_path: Path) -> None:
    add_agent(commands.store)
    commands("export", "-o", str(tmp_path / "exported"))
    other = commands_for(MemoryCheckpointStore())
    other.store.acquire("user-42", "a worker", 30)
    result = other("import", str(tmp_path / "exported"), code=75)
    assert "holds the lease of agent" in result.stderr


def test_a_failure_for_one_agent_does_not_stop_the_others(commands: Commands) -> None:
    for name in ("one", "two"):
        add_agent(commands.store, name)
    result = commands("delete", "one", "unknown", "two", "--yes", code=66)
    assert result.stdout.splitlines() == [
        "one: deleted (3 checkpoints).",
        "two: deleted (3 checkpoints).",
    ]
    assert "'unknown'" in result.stderr
    assert list(commands.store.agents()) == []


def test_delete_without_confirmation_deletes_nothing(commands: Commands) -> None:
    add_agent(commands.store)
    assert "--yes" in commands.fails("delete", "user-42", code=2)
    assert len(commands.store.history("user-42")) == 3


def test_a_run_without_a_recorded_message_cannot_be_resumed(commands: Commands) -> None:
    add_agent(commands.store)
    assert "not on record" in commands.fails("resume", "user-42", code=1)


def test_a_run_that_succeeded_cannot_be_resumed(commands: Commands) -> None:
    add_agent(commands.store, status="succeeded")
    assert "has already ended (succeeded)" in commands.fails("resume", "user-42", code=1)


def test_an_error_contains_no_control_characters(commands: Commands) -> None:
    line = commands.fails("show", "a\x1b[2J\nb\x9b", code=66)
    assert line.isprintable()


def test_an_unknown_command_gets_a_suggestion(commands: Commands) -> None:
    assert "list" in commands.fails("lst", code=2)
    assert "doctor" in commands.fails("docter", code=2)


@pytest.mark.parametrize("name", ["nosuch", "start", "help"])
def test_a_command_that_resembles_no_other_gets_no_suggestion(commands: Commands, name: str) -> None:
    assert "mean" not in commands.fails(name, code=2)


@pytest.mark.parametrize(
    "arguments",
    [["show"], ["show", "-x"], ["diff", "one"], ["list", "--status", "x"], ["import", "nowhere"]],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_that_points_to_the_help(
    commands: Commands, arguments: list[str]
) -> None:
    line = commands.fails(*arguments, code=2)
    assert line.endswith(f". See: celery ckpt {arguments[0]} --help")


def test_an_error_that_ends_with_a_question_mark_gets_no_full_stop(commands: Commands) -> None:
    one = commands.fails("--stor", "x", "list", code=2)
    assert one.endswith("Did you mean '--store'? See: celery ckpt --help")
    several = commands.fails("list", "--statu", "x", code=2)
    assert several.endswith("'--task'?) See: celery ckpt list --help")


def test_a_wrong_option_before_the_command_is_one_line_too(commands: Commands) -> None:
    assert commands.fails("--stor", "x", "list", code=2).endswith(" See: celery ckpt --help")
    assert "Commands:" in commands(code=2).stderr
