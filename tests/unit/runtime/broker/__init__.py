"""``celery_ckpt.runtime.broker``"""
