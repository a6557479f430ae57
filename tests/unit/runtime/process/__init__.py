"""``celery_ckpt.runtime.process``"""
