"""How a command ends: one line about what went wrong, and a code that programs can tell apart.

The codes are those of ``sysexits.h``, as Celery's own commands have them; docs/reference/cli.md lists
them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from celery_ckpt import errors
from celery_ckpt.cli.output.progress import aside
from celery_ckpt.cli.output.text import one_line


class Code(IntEnum):
    """The exit codes."""

    DONE = 0
    #: The answer is no: they differ, something was found, it cannot be done to a run that is over.
    NO = 1
    USAGE = 2
    DAMAGED = 65
    NOT_FOUND = 66
    UNAVAILABLE = 69
    BUSY = 75
    CONFIGURATION = 78
    INTERRUPTED = 130
    CLOSED_PIPE = 141


#: How a disk says that nothing more can be written: by now of the output, not of the store.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: The first that fits counts.
_CODES: tuple[tuple[type[errors.CheckpointError], Code], ...] = (
    (errors.ConfigurationError, Code.CONFIGURATION),
    (errors.InvalidName, Code.USAGE),
    (errors.AgentNotFound, Code.NOT_FOUND),
    (errors.CheckpointNotFound, Code.NOT_FOUND),
    (errors.RunNotFound, Code.NOT_FOUND),
    (errors.StoreUnavailable, Code.UNAVAILABLE),
    (errors.StoreDamaged, Code.DAMAGED),
    (errors.CheckpointDamaged, Code.DAMAGED),
    (errors.SchemaTooNew, Code.DAMAGED),
    (errors.NotEncrypted, Code.DAMAGED),
    (errors.EncryptionKeyMissing, Code.CONFIGURATION),
    (errors.NotAnExport, Code.DAMAGED),
    (errors.LeaseError, Code.BUSY),
)


def code_of(error: errors.CheckpointError) -> Code:
    """The exit code that tells this kind of error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.NO)


class Failure(click.ClickException):
    """A command that ends with one line and a code."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(one_line(message))
        self.exit_code = int(code)  # type: ignore[misc]  # click's way


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Let whatever can be expected to go wrong end with one line; a bug keeps its traceback."""
    try:
        yield
        sys.stdout.flush()
    except errors.CheckpointError as error:
        raise Failure(str(error), code_of(error)) from error
    except click.UsageError as error:
        raise Failure(_with_the_way_to_help(error), Code.USAGE) from error
    except BrokenPipeError:
        _leave_the_closed_pipe()
        raise click.exceptions.Exit(Code.CLOSED_PIPE) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        raise click.exceptions.Exit(Code.INTERRUPTED) from None
    except Exception as error:
        if _is_of_a_connection(error):
            raise Failure(
                f"The broker or the result backend did not answer: {_told(error)}. "
                "Check that they are running, and the app's broker_url and result_backend.",
                Code.UNAVAILABLE,
            ) from error
        if not (isinstance(error, OSError) and error.errno in _NO_ROOM):
            raise
        _leave_the_closed_pipe()
        raise Failure(f"Cannot write the output: {error.strerror}.", Code.NO) from error


def _told(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _with_the_way_to_help(error: click.UsageError) -> str:
    said = error.format_message().strip()
    sentence = said if said.endswith((".", "?", "?)")) else f"{said}."
    return f"{sentence} See: {error.ctx.command_path} --help" if error.ctx else sentence


def _is_of_a_connection(error: Exception) -> bool:
    """Celery lets the errors of drivers through; the store's own are errors of ours by now."""
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    return isinstance(error, OperationalError | RedisError | ConnectionError | TimeoutError)


def _leave_the_closed_pipe() -> None:
    """What is left to be written when Python ends goes nowhere, without a word about it."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no real file, as in a test
        return


class Tally:
    """Several things are done one after the other; one that fails does not keep the others."""

    def __init__(self) -> None:
        self._code = Code.DONE

    @property
    def has_failed(self) -> bool:
        """Did anything go wrong so far?"""
        return self._code is not Code.DONE

    @contextmanager
    def one(self) -> Iterator[None]:
        """Do one of them: its error is told, and remembered for the end."""
        try:
            yield
        except errors.StoreUnavailable:
            raise  # the others would fail as well, each after some seconds
        except errors.CheckpointError as error:
            self.failed(str(error), code_of(error))

    def failed(self, message: str, code: Code) -> None:
        """Something went wrong: say it now, and end with that code, or an earlier one."""
        with aside(sys.stderr):
            Failure(message, code).show()
        self._code = self._code or code

    def end(self) -> None:
        """End the command with the code of the first that failed."""
        if self._code:
            raise click.exceptions.Exit(self._code)
