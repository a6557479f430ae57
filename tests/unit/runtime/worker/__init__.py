"""``celery_ckpt.runtime.worker``"""
