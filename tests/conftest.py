from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.servers.valkey import Valkey

# With two cores and many processes, the duration of an example, and of its generation, means nothing.
# CKPT_EXAMPLES=1000 searches deeper.
settings.register_profile(
    "suite",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("CKPT_EXAMPLES", "30")),
)
settings.load_profile("suite")

# A script that starts the tests in the background ignores SIGINT, and every process inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Start one plain server for each xdist worker."""
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def redis_url(valkey: Valkey) -> str:
    """Return the URL of an empty server."""
    with valkey.client() as client:
        client.flushall()
    return valkey.url


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report where the tests ran that can run in more than one place."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    said = {f"{name} {value}" for report in reports for name, value in report.user_properties}
    for line in sorted(said):
        terminalreporter.write_line(line)
