"""``celery_ckpt.retention``"""
