"""The page on stores shows a package that provides a store. Here it is built, installed and used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, page

PAGE = page("docs/howto/write-a-store.md")

USE = """
import sys
from celery import Celery
from celery_ckpt import open_store
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.testing import make_checkpoint

url = f"audit+sqlite:///{sys.argv[1]}/agents.db"
checkpoint = make_checkpoint("agent")
with open_store(url) as store:
    store.save(checkpoint)

app = Celery("audited")
app.conf.update(ckpt_store_url=url, ckpt_durability="fsync")
store = AppContext.of(app).store
assert store.load_latest("agent") == checkpoint
assert store.delete("agent") == 1
print(type(store).__module__, type(store).__name__, sorted(store.features))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page."""
    directory = tmp_path_factory.mktemp("audit-store")
    for block in PAGE.blocks:
        if block.title is not None:
            (directory / block.title).write_text(block.code, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def site(project: Path) -> Path:
    """The directory into which the package is installed."""
    target = project / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Its dependencies are installed already, and nothing is downloaded.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", target, project]
    subprocess.run([*pip, *options], check=True, timeout=120)
    return target


def run(site: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_installed_store_is_opened_by_its_url_and_by_an_app(site: Path, tmp_path: Path) -> None:
    used = run(site, "-c", USE, tmp_path, cwd=tmp_path)
    assert used.stdout == "audit_store AuditStore ['log', 'reschedule', 'rewrite']\n", used.stderr
    assert "Deleted agent agent with 1 checkpoints" in used.stderr


def test_a_command_opens_the_installed_store(site: Path, tmp_path: Path) -> None:
    url = f"audit+sqlite:///{tmp_path}/agents.db"
    listed = run(site, "-m", "celery", "ckpt", "--store", url, "list", "--json", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")


def test_the_installed_store_keeps_the_contract(site: Path, project: Path, tmp_path: Path) -> None:
    tests = tmp_path / "test_audit_store.py"
    tests.write_text((project / tests.name).read_text())
    # The other tests wait for leases to expire, because this store has no fake clock.
    some = [
        "-k",
        "save or load or delete or feature or run",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    tested = run(site, "-m", "pytest", "-q", *some, tests, cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout
