"""``celery_ckpt.run``: a body's side of a run, on a host in this process."""
