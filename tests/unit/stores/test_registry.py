"""Schemes of other packages: registered, or provided by an entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_ckpt import CheckpointStore, MemoryCheckpointStore, open_store, register_store
from celery_ckpt.errors import ConfigurationError
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.stores import registry
from celery_ckpt.stores.encrypted import EncryptedStore
from tests.support.encryption import OLD


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def opener(url: str, *, color: str = "", **options: Any) -> CheckpointStore:
    store = MemoryCheckpointStore(**options)
    store.opened_with = (url, color)  # type: ignore[attr-defined]
    return store


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("ext_one", "ext_two"):
        sys.modules.pop(name, None)


def install(site: Path, package: str, entry: str, code: str = "") -> None:
    info = site / f"{package.replace('-', '_')}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[celery_ckpt.stores]\n{entry}\n")
    (site / f"{package.replace('-', '_')}.py").write_text(code)


def test_a_registered_scheme_is_opened_with_the_url_and_the_options() -> None:
    register_store("ext", opener)
    store = open_store("ext://user:pw@host/x", color="red", max_checkpoint_bytes=10)
    assert store.opened_with == ("ext://user:pw@host/x", "red")  # type: ignore[attr-defined]
    assert store.max_checkpoint_bytes == 10  # type: ignore[attr-defined]


def test_an_app_opens_a_registered_scheme() -> None:
    register_store("ext", opener)
    app = Celery("ext", set_as_current=False)
    app.conf.update(ckpt_store_url="ext://x", ckpt_max_checkpoint_bytes=1000)
    store = AppContext.of(app).store
    assert store.opened_with == ("ext://x", "")  # type: ignore[attr-defined]


def test_a_registered_store_can_be_encrypted() -> None:
    register_store("ext", opener)
    assert isinstance(open_store("ext://x", encryption_keys=[OLD]), EncryptedStore)


def test_durability_reaches_the_opener_unless_it_is_the_default() -> None:
    register_store("ext", lambda url, **options: options)  # type: ignore[arg-type,return-value]
    assert open_store("ext://x") == {}
    assert open_store("ext://x", durability="fsync") == {"durability": "fsync"}


def test_an_option_that_the_opener_does_not_take_is_named() -> None:
    register_store("ext", opener)
    with pytest.raises(ConfigurationError, match=r"Invalid options for a ext:// store: .*colour"):
        open_store("ext://x", colour="red")


def test_an_unknown_scheme_lists_the_known_ones_and_does_not_show_the_url(site: Path) -> None:
    register_store("ext", opener)
    install(site, "ext-one", "from-entry-point = ext_one:opener")
    with pytest.raises(ConfigurationError) as refused:
        open_store("mongo://user:secret@host")
    message = str(refused.value)
    assert message.startswith("Unknown store scheme 'mongo'. Known schemes: memory://, file://, ")
    assert message.endswith("rediss+cluster://, ext://, from-entry-point://.")
    assert "secret" not in message


@pytest.mark.parametrize("url", ["", "nonsense", "://x"])
def test_a_url_without_a_scheme_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"begins with a scheme. Known schemes: memory://"):
        open_store(url)


@pytest.mark.parametrize("scheme", ["redis", "file", "rediss+cluster"])
def test_a_built_in_scheme_cannot_be_registered(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is built in. Use another one"):
        register_store(scheme, opener)


def test_a_scheme_is_registered_for_one_opener() -> None:
    register_store("ext", opener)
    register_store("ext", opener)
    with pytest.raises(ConfigurationError, match=r"'ext' is already registered for <function opener"):
        register_store("ext", lambda url: MemoryCheckpointStore())


@pytest.mark.parametrize("scheme", ["", "Ext", "1x", "a b", "ext://"])
def test_what_is_not_a_scheme_cannot_be_registered(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a URL scheme"):
        register_store(scheme, opener)


CODE = """
from celery_ckpt import MemoryCheckpointStore
def opener(url, **options):
    return MemoryCheckpointStore(**options)
text = "not callable"
"""


def test_an_entry_point_is_opened(site: Path) -> None:
    install(site, "ext-one", "ext = ext_one:opener", CODE)
    assert isinstance(open_store("ext://x"), MemoryCheckpointStore)


def test_a_registered_opener_takes_precedence_over_an_entry_point(site: Path) -> None:
    install(site, "ext-one", "ext = ext_one:broken", CODE)
    register_store("ext", opener)
    assert isinstance(open_store("ext://x"), MemoryCheckpointStore)


def test_an_entry_point_cannot_replace_a_built_in_store(site: Path) -> None:
    install(site, "ext-one", "memory = ext_one:broken", CODE)
    assert isinstance(open_store("memory://"), MemoryCheckpointStore)


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("ext_one:nothing", CODE, "cannot be loaded .*AttributeError"),
        ("ext_one:opener", "import no_such_module", "cannot be loaded .*No module named"),
        ("ext_one:opener", "1 / 0", "cannot be loaded .*ZeroDivisionError"),
        ("ext_one:text", CODE, "ext_one:text is not callable"),
    ],
)
def test_a_broken_entry_point_names_its_package(site: Path, value: str, code: str, why: str) -> None:
    install(site, "ext-one", f"ext = {value}", code)
    with pytest.raises(ConfigurationError, match=f"scheme 'ext' of the package ext-one .*{why}"):
        open_store("ext://x")


def test_two_packages_with_one_scheme_are_named(site: Path) -> None:
    install(site, "ext-one", "ext = ext_one:opener", CODE)
    install(site, "ext-two", "ext = ext_two:opener", CODE)
    with pytest.raises(ConfigurationError, match="packages ext-one and ext-two both provide"):
        open_store("ext://x")


def test_a_built_in_store_is_opened_without_reading_entry_points() -> None:
    code = "import sys; from celery_ckpt import open_store; open_store('memory://'); "
    code += "from importlib import metadata\n"
    code += "def read(**_): raise SystemExit('entry points were read')\n"
    code += "metadata.entry_points = read\nopen_store('memory://')"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [("ext://user:secret@host/x?token=1", "ext://host/x"), ("sqlite:///a.db", "sqlite:///a.db")],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert registry.without_password(url) == shown
