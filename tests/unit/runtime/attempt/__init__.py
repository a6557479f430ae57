"""``celery_ckpt.runtime.attempt``"""
