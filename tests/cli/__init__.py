"""``celery ckpt``: its commands in this process, as a process, and on a pseudo terminal."""
