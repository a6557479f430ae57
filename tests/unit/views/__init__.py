"""``celery_ckpt.views``"""
