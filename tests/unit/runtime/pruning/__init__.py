"""``celery_ckpt.runtime.pruning``"""
