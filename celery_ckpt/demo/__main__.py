"""``python -m celery_ckpt.demo``: runs the demo without the console script."""

from __future__ import annotations

from celery_ckpt.demo.script import demo

if __name__ == "__main__":
    demo()
