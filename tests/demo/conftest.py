from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.demo import Demo, StartDemo


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    with ExitStack() as running:

        def start(*arguments: str, **options: Any) -> Demo:
            demo = Demo(tmp_path, *arguments, **options)
            running.callback(demo.close)
            return demo

        yield start
