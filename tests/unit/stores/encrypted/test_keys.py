"""Keys: how they may be written, and that nothing ever shows one."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import MemoryCheckpointStore, open_store
from celery_ckpt.errors import ConfigurationError
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.settings import Settings
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.encrypted.key_ring import parse_keys
from tests.support.encryption import NEW, OLD, key

SECRET = bytes(range(200, 232))
STANDARD = base64.b64encode(SECRET).decode()


@pytest.mark.parametrize(
    "written",
    [STANDARD, base64.urlsafe_b64encode(SECRET).decode(), STANDARD.rstrip("="), f"  {STANDARD}\n"],
)
def test_a_key_can_use_any_base64_alphabet(written: str) -> None:
    [found] = parse_keys([written])
    assert found.secret == SECRET
    assert found.id == parse_keys([STANDARD])[0].id
    assert len(found.id) == 8


def test_the_repr_of_a_key_does_not_reveal_it() -> None:
    assert repr(parse_keys([f"mine:{STANDARD}"])) == "[Key(id='mine')]"


def test_keys_can_have_names_and_be_given_in_one_text() -> None:
    assert [found.id for found in parse_keys(f"{NEW},{OLD}")] == ["new", "old"]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["not a key!"], "number 1 is not base64"),
        ([OLD, STANDARD[:-8]], "number 2 has 27 bytes instead of 32"),
        ([f"a b:{STANDARD}"], "number 1 has an id that is not"),
        ([STANDARD, STANDARD], "Two of the encryption keys have the id"),
        ([f"x:{STANDARD}", key(1, "x")], "Two of the encryption keys have the id 'x'"),
        ([SECRET], "number 1 is of type bytes"),
        (["", OLD], "number 1 has 0 bytes"),
        ("", "number 1 has 0 bytes"),
        ([], "There is no encryption key"),
    ],
)
def test_an_invalid_key_is_identified_but_not_shown(keys: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        EncryptedStore(open_store("memory://"), keys)
    assert STANDARD[:12] not in str(refused.value)


def app_with(**conf: Any) -> Celery:
    app = Celery("keys", set_as_current=False)
    app.conf.update(ckpt_store_url="memory://", **conf)
    return app


@pytest.mark.parametrize("keys", [[NEW, OLD], (NEW, OLD), f"{NEW}, {OLD}"])
def test_an_app_with_keys_has_an_encrypted_store(keys: Any) -> None:
    app = app_with(ckpt_encryption_keys=keys)
    assert isinstance(AppContext.of(app).store, EncryptedStore)


@pytest.mark.parametrize("keys", [None, (), []])
def test_an_app_without_keys_has_no_encrypted_store(keys: Any) -> None:
    app = app_with(ckpt_encryption_keys=keys)
    assert type(AppContext.of(app).store) is MemoryCheckpointStore


def test_an_unset_variable_does_not_disable_encryption() -> None:
    with pytest.raises(ConfigurationError, match=r"_keys is wrong: .*number 1 has 0 bytes"):
        Settings.of(app_with(ckpt_encryption_keys=""))
    with pytest.raises(ConfigurationError, match="number 1 has 0 bytes"):
        open_store("memory://", encryption_keys="")


def test_no_message_about_settings_shows_a_key() -> None:
    whole = app_with(ckpt_encryption_keys=[STANDARD])
    assert STANDARD not in repr(Settings.of(whole))
    assert STANDARD not in whole.bugreport()
    with pytest.raises(ConfigurationError, match="ckpt_encryption_keys is wrong") as refused:
        Settings.of(app_with(ckpt_encryption_keys=[STANDARD, STANDARD[:-8]]))
    shown = [str(refused.value), repr(refused.value.__cause__), repr(refused.value.__context__)]
    assert not any(STANDARD[:12] in one for one in shown)


def test_the_error_without_the_package_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from celery_ckpt import open_store\n"
        f"open_store('memory://', encryption_keys={OLD!r})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigurationError: Encryption needs the package cryptography: pip install" in run.stderr


def test_without_keys_the_package_is_not_imported() -> None:
    code = (
        "import sys; from celery import Celery; from celery_ckpt import open_store\n"
        "from celery_ckpt.runtime.process.context import AppContext\n"
        "app = Celery(); app.conf.ckpt_store_url = 'memory://'; AppContext.of(app)\n"
        "print([name for name in sys.modules if name.startswith('cryptography')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
