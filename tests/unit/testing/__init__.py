"""``celery_ckpt.testing``"""
