"""Real Celery workers for the tests: started, watched, killed, frozen, cut off and cleaned up.

A test asks for the fixtures of ``fixtures.py`` (``conftest.py`` shows how a directory gets them)::

    @pytest.mark.configured(transport_options=FAST_REDELIVERY, conf={"ckpt_lease_ttl": 2})
    def test_a_killed_worker_is_replaced(start_worker, celery_app, ledger, broker):
        worker = start_worker(pool="threads")           # ready; ends with the test
        ledger.hold("step 1")                           # that call waits, however late the test is
        result = slow.delay(5, 0)                       # goes to celery_app, the current one
        ledger.wait_for_call("step 1", 5)
        worker.kill_tree()
        ledger.let_go()
        start_worker()
        assert result.get(timeout=60) == 5
        ledger.never_two_bodies_at_once(result.id)
        broker.assert_clean(5)

Other tasks: a module of shared tasks whose bodies write to ``ledger.here()``, named in
``@pytest.mark.configured(include=("tests.support.tasks.agents",))``. Workers are started by the thread
that the tests run in: they die with the thread that started them.

A worker is forked by a process that has made Celery's imports, which saves most of a second. What
depends on how a process begins asks for ``start_worker(forked=False)``, the command as anybody runs it;
gevent's workers, those with variables of their own and those of pytest-celery are such commands anyway.
"""

from __future__ import annotations
