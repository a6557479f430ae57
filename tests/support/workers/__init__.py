"""Real Celery workers for the tests, which can be killed, frozen, disconnected and restarted.

A test uses the fixtures of ``fixtures.py`` (a ``conftest.py`` imports them for its directory)::

    @pytest.mark.configured(transport_options=FAST_REDELIVERY, conf={"ckpt_lease_ttl": 2})
    def test_a_killed_worker_is_replaced(start_worker, celery_app, ledger, broker):
        worker = start_worker(pool="threads")           # ready; ends with the test
        ledger.hold("step 1")                           # this call waits until it is released
        result = slow.delay(5, 0)                       # sent by celery_app, the current app
        ledger.wait_for_call("step 1", 5)
        worker.kill_tree()
        ledger.let_go()
        start_worker()
        assert result.get(timeout=60) == 5
        ledger.never_two_bodies_at_once(result.id)
        broker.assert_clean(5)

Other tasks are in a module of shared tasks whose bodies write to ``ledger.here()``, named in
``@pytest.mark.configured(include=("tests.support.tasks.agents",))``. Start workers in the thread that
runs the test: a worker dies with the thread that started it.

A worker is forked from a process that has imported Celery, which saves most of a second. A test that
depends on the start of a process uses ``start_worker(forked=False)``, which runs the command.
Workers with gevent, with extra environment variables, or of pytest-celery always run it.
"""

from __future__ import annotations
