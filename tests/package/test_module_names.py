"""Names of modules, the depth of classes, and what each package says about itself.

A module name has one meaning. A name that occurs more than once is in a table of ``docs/glossary.md``,
under the heading "Module names", with the meaning that all its modules share.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import celery_ckpt

PACKAGE = Path(celery_ckpt.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
HEADING = "Module names"
#: Names that say nothing about what is in the module.
EMPTY = {"base", "helper", "helpers", "manager", "managers", "util", "utils"}
#: Nouns that end like a gerund: "an encoding"; the public name of the test kit.
#: ``pruning`` is the noun for what a sweep does; ``testing`` is a public name; a key ring holds keys.
NOT_GERUNDS = {"encoding", "key_ring", "pruning", "run_pruning", "string", "testing"}
#: Lists the parts of the contract: the author of a store subclasses one name.
LISTS_OF_TESTS = {"celery_ckpt.testing.contract.suite.StoreContract"}
MOST_ANCESTORS = 4
LEAST_LINES = 3

#: Every module and package below celery_ckpt, by its dotted name.
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py" and path != PACKAGE / "__init__.py"
)
PACKAGES = sorted({path.parent for path in PACKAGE.rglob("*.py")})

#: Prints the classes of modules, each with the classes of the package that it inherits from.
ANCESTORS = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    for one in vars(importlib.import_module(name)).values():
        if isinstance(one, type) and one.__module__ == name:
            found[f"{name}.{one.__qualname__}"] = [
                above.__qualname__
                for above in one.__mro__[1:]
                if above.__module__.split(".")[0] == "celery_ckpt"
            ]
print(json.dumps(found))
"""


def names(modules: Iterable[str]) -> Counter[str]:
    """Return how often each name occurs. A module with the name of its own package is the same idea."""
    found: Counter[str] = Counter()
    for module in modules:
        *_, package, name = module.split(".")
        if name != package:
            found[name] += 1
    return found


def declared(glossary: str) -> dict[str, str]:
    """Return the names in the glossary's table of module names, with their meanings."""
    after = re.split(rf"^#+ {HEADING}$", glossary, maxsplit=1, flags=re.MULTILINE)[1:]
    section = re.split(r"^#", after[0], maxsplit=1, flags=re.MULTILINE)[0] if after else ""
    return dict(re.findall(r"^\| *\**`(\w+)`\** *\| *(.*?) *\|$", section, flags=re.MULTILINE))


def repeated(modules: Iterable[str]) -> set[str]:
    return {name for name, count in names(modules).items() if count > 1}


def ancestors(modules: Iterable[str]) -> dict[str, list[str]]:
    """Return the classes of modules, each with its ancestors, from a process that has imported
    them all.
    """
    # Some modules of the demo are imported by its workers, and need the address of its server.
    environment = {**os.environ, "CKPT_DEMO_SERVER": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "-c", ANCESTORS, *modules]
    run = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    found: dict[str, list[str]] = json.loads(run.stdout)
    return found


# -- module names --------------------------------------------------------------------------------------


def test_a_name_that_occurs_twice_has_one_meaning_in_the_glossary() -> None:
    missing = repeated(MODULES) - declared(GLOSSARY.read_text(encoding="utf-8")).keys()
    where = [module for module in MODULES if module.rpartition(".")[2] in missing]
    assert not missing, "\n".join(sorted(where, key=lambda module: module.rpartition(".")[2]))


def test_the_glossary_lists_only_names_that_occur_twice() -> None:
    listed = declared(GLOSSARY.read_text(encoding="utf-8"))
    assert listed.keys() - repeated(MODULES) == set()
    assert [name for name, meaning in listed.items() if not meaning] == []


def test_no_module_is_named_by_a_gerund() -> None:
    gerunds = [
        module
        for module in MODULES
        if module.endswith("ing") and module.rpartition(".")[2] not in NOT_GERUNDS
    ]
    assert not gerunds, "\n".join(gerunds)


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [module for module in MODULES if module.rpartition(".")[2] in EMPTY] == []


# -- classes -------------------------------------------------------------------------------------------


def test_no_class_has_more_than_four_ancestors() -> None:
    deep = {
        name: above
        for name, above in ancestors(MODULES).items()
        if len(above) > MOST_ANCESTORS and name not in LISTS_OF_TESTS
    }
    assert not deep, "\n".join(f"{name}: {', '.join(above)}" for name, above in deep.items())


# -- packages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_package_says_what_it_holds_what_it_imports_and_what_stays_true(package: Path) -> None:
    said = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    lines = [line for line in said.splitlines() if line.strip()]
    assert len(lines) >= LEAST_LINES, said


# -- the rules themselves ------------------------------------------------------------------------------

TABLE = """# Glossary

| word | meaning |
|---|---|
| `word` | not a module |

## Module names

| name | meaning |
|---|---|
| `store` | The class that keeps agents. |
| **`keys`** | |

## Other

| `other` | not a module |
"""


def test_the_table_of_module_names_is_read() -> None:
    assert declared(TABLE) == {"store": "The class that keeps agents.", "keys": ""}
    assert declared("# Glossary\n") == {}


def test_a_name_in_two_places_is_repeated_and_one_like_its_package_is_not() -> None:
    assert repeated(["p.a.x", "p.b.x", "p.b.y"]) == {"x"}
    assert repeated(["p.a", "p.a.a"]) == set()
    assert repeated(["p.a", "p.b.a"]) == {"a"}


def test_ancestors_are_all_classes_of_the_package_above_a_class() -> None:
    found = ancestors(["celery_ckpt.errors"])
    assert found["celery_ckpt.errors.CheckpointError"] == []
    assert found["celery_ckpt.errors.CheckpointDamaged"][-1] == "CheckpointError"
