"""``celery_ckpt.stores.log``"""
