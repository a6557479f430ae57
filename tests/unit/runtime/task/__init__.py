"""``celery_ckpt.runtime.task``"""
