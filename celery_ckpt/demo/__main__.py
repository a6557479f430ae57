"""``python -m celery_ckpt.demo``: the demo, without a console script."""

from __future__ import annotations

from celery_ckpt.demo.script import demo

if __name__ == "__main__":
    demo()
