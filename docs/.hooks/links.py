"""Links from a page to a file outside of docs/ lead to the repository when they are on the site.

In the repository they are plain relative links, so that they work there too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    docs = Path(config["docs_dir"]).resolve()
    here = docs / Path(page.file.src_uri).parent

    def on_the_site(link: re.Match[str]) -> str:
        target = (here / link[1]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        path = target.relative_to(docs.parent).as_posix()
        return f"]({config['repo_url']}/{kind}/main/{path}"

    return _OUTSIDE.sub(on_the_site, markdown)
