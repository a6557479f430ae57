"""How a command ends: one line that says what went wrong, and an exit code for programs.

The codes are taken from ``sysexits.h``, like the codes of Celery's own commands; docs/reference/cli.md
lists them. An error that a user can cause never prints a traceback; a bug always does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from celery_ckpt import errors
from celery_ckpt.cli.output.progress import bar_hidden
from celery_ckpt.cli.output.text import one_line


class Code(IntEnum):
    """The exit codes."""

    DONE = 0
    #: The answer is no: checkpoints differ, doctor found a problem, or the run has already ended.
    NO = 1
    USAGE = 2
    DAMAGED = 65
    NOT_FOUND = 66
    UNAVAILABLE = 69
    BUSY = 75
    CONFIGURATION = 78
    INTERRUPTED = 130
    CLOSED_PIPE = 141


#: The first class that matches decides.
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
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.NO)


class Failure(click.ClickException):
    """Ends the command with one line and an exit code."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(one_line(message))
        self.exit_code = int(code)  # type: ignore[misc]  # an attribute of the class in click


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors that a user can cause into one line and an exit code; a bug keeps its traceback."""
    try:
        yield
        sys.stdout.flush()
    except errors.CheckpointError as error:
        raise Failure(str(error), code_of(error)) from error
    except click.UsageError as error:
        message = error.format_message().strip()
        sentence = message if message.endswith((".", "?", "?)")) else f"{message}."
        hint = f" See: {error.ctx.command_path} --help" if error.ctx else ""
        raise Failure(f"{sentence}{hint}", Code.USAGE) from error
    except BrokenPipeError:
        _discard_output()
        raise click.exceptions.Exit(Code.CLOSED_PIPE) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        raise click.exceptions.Exit(Code.INTERRUPTED) from None
    except Exception as error:
        if _is_connection_error(error):
            reason = str(error).rstrip(".") or type(error).__name__
            raise Failure(
                f"The broker or the result backend did not answer: {reason}. "
                "Check that they are running, and the app's broker_url and result_backend.",
                Code.UNAVAILABLE,
            ) from error
        # The store raises StoreFull, so this is about the output.
        if not (isinstance(error, OSError) and errors.is_disk_full(error)):
            raise
        _discard_output()
        raise Failure(f"Cannot write the output: {error.strerror}.", Code.NO) from error


def _is_connection_error(error: Exception) -> bool:
    """True for an error of Celery's drivers. Stores raise ``StoreUnavailable`` instead."""
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    return isinstance(error, OperationalError | RedisError | ConnectionError | TimeoutError)


def _discard_output() -> None:
    """Let Python flush the rest of the output to ``/dev/null`` when it exits, without an error."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # standard output is not a file, as in a test
        return


class Tally:
    """Collects the exit code of a command that handles several agents: one failure stops no other."""

    def __init__(self) -> None:
        self._code = Code.DONE

    @property
    def has_failed(self) -> bool:
        """True once an agent has failed."""
        return self._code is not Code.DONE

    @contextmanager
    def one(self) -> Iterator[None]:
        """Report the error of one agent, and remember its exit code."""
        try:
            yield
        except errors.StoreUnavailable:
            raise  # every other agent would fail too, each after some seconds
        except errors.CheckpointError as error:
            self.failed(str(error), code_of(error))

    def failed(self, message: str, code: Code) -> None:
        """Print the message now. The command ends with this code, or with an earlier one."""
        with bar_hidden(sys.stderr):
            Failure(message, code).show()
        self._code = self._code or code

    def end(self) -> None:
        """End the command with the code of the first failure, if any."""
        if self._code:
            raise click.exceptions.Exit(self._code)
