"""``celery ckpt import`` with any file: a documented exit code, a line for each problem, and no
harm.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from random import Random
from unicodedata import category

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_ckpt import MemoryCheckpointStore
from celery_ckpt.cli import ckpt
from celery_ckpt.cli.errors import Code
from celery_ckpt.cli.output.text import one_line
from celery_ckpt.runtime.process.context import AppContext, _contexts
from tests.fuzz.audit import nothing_executed
from tests.fuzz.exports import BYSTANDER, EXPORT, any_export, exported
from tests.fuzz.imports import store_with
from tests.fuzz.mutations import any_text, nested

#: The exit codes of an import: success, a different history, a damaged file, or names that no agent can
#: have.
_CODES = {Code.DONE, Code.NO, Code.DAMAGED, Code.USAGE}
#: Characters that change the direction of a line.
_TURNS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def check_import_command(chance: Random) -> None:
    """Check that the command ends as documented, whatever the file contains, and changes no
    other agent.
    """
    store = store_with(BYSTANDER)
    before, as_json = exported(store, BYSTANDER), chance.random() < 0.3
    _warm()
    with nothing_executed():
        result = _import(store, any_file(chance), *(["--json"] if as_json else []))

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in _CODES, result.exit_code
    errors, reported = result.stderr.split("\n"), result.stdout.split("\n")
    assert errors.pop() == reported.pop() == "", "each line is terminated"
    assert bool(errors) == bool(result.exit_code)
    assert all(line.startswith("Error: ") and _does_nothing(line) for line in errors), errors
    assert len(errors) <= 4, "one for each agent that an export claims, and one for the file"
    for line in reported:
        assert isinstance(json.loads(line), dict) if as_json else _does_nothing(line)
    if not any(BYSTANDER in line for line in reported):
        assert exported(store, BYSTANDER) == before
    if result.exit_code == Code.DONE:
        assert all(store.load_latest(name) or store.runs(name) for name in store.agents())


def _does_nothing(line: str) -> bool:
    """True if the text has no character that a terminal obeys."""
    return not any(category(one) in ("Cc", "Cs", "Zl", "Zp") or one in _TURNS for one in line)


def any_file(chance: Random) -> bytes:
    """Return an export that was forged or torn, or a file that never was an export."""
    if chance.random() < 0.7:
        return any_export(chance)
    line = EXPORT.partition(b"\n")[0]
    return chance.choice(
        (
            b"",
            b"\n" * chance.randrange(9),
            chance.randbytes(chance.randrange(300)),
            any_text(chance, 200).encode(),
            gzip.compress(EXPORT, mtime=0),
            b"\xef\xbb\xbf" + EXPORT,
            EXPORT.decode().encode("utf-16"),
            EXPORT.replace(b"\n", b"\r\n"),
            EXPORT.replace(b"\n", b""),
            EXPORT + EXPORT,
            line + b"\n" + json.dumps(nested(chance.randrange(1, 900))).encode(),
            line + b"x" * 100_000,
            b"[" * 50_000,
        )
    )


def _import(store: MemoryCheckpointStore, file: bytes, *options: str) -> Result:
    app = _app()
    _contexts[app] = AppContext(app, store)
    context = CLIContext(app=app, no_color=False, workdir=None)
    return CliRunner().invoke(
        ckpt, ["import", "-", *options], obj=context, prog_name="celery ckpt", input=file
    )


@cache
def _app() -> Celery:
    app = Celery("hostile", broker="memory://", set_as_current=False)
    app.conf.ckpt_store_url = "memory://"
    return app


@cache
def _warm() -> None:
    """Trigger all imports that happen on demand."""
    one_line("\x1b")
    for file in (EXPORT, b"nothing"):
        for options in ([], ["--json"]):
            _import(store_with(), file, *options)
