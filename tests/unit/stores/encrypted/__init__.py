"""``celery_ckpt.stores.encrypted``"""
