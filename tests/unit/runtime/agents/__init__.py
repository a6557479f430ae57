"""``celery_ckpt.runtime.agents``"""
