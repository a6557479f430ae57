"""``celery_ckpt.runtime``, in this process. A few tests of settings, log lines and redaction also
start a worker.
"""
