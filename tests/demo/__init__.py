"""``celery-ckpt demo`` as a user starts it."""
