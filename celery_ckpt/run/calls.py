"""The calls of a run: recorded when they are made, replayed when they were made before.

    recorded? ── yes ──> replay: append again what it appended, call nothing, emit nothing
        └── no ──> check ─> call ─> record, with a checkpoint, and append ─> emit

Recording a result and appending it to the conversation is one unit of work. No cancellation and no time
limit can interrupt it: otherwise a body that continues after a timeout would lack what its replay has.
A checkpoint of the event is written together with the step. It needs the conversation with the result,
which is made beside the real one and becomes visible once the step is recorded.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import CheckpointError, RunMisused, StepResultNotJson
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.json_values import encode
from celery_ckpt.messages import Message, ToolCall
from celery_ckpt.records import CallKind, Step
from celery_ckpt.run.bridge import AsyncInSyncBody, Bridge
from celery_ckpt.run.control_flow import HandOff
from celery_ckpt.run.host import RunHost, Saved
from celery_ckpt.run.model_reply import Reply, recorded_reply, usage_of
from celery_ckpt.run.position import Position, here
from celery_ckpt.run.redaction import Redaction
from celery_ckpt.run.replay import Inside, Recognition, step_under_way, under_way
from celery_ckpt.run.step_options import StepOptions, arguments_of
from celery_ckpt.run.step_result import declared, dumped, loaded
from celery_ckpt.run.steps import MANUAL, StepBook, name_of
from celery_ckpt.run.timed_call import TimedCall
from celery_ckpt.run.tool_results import ToolResults, Trial
from celery_ckpt.run.toolbox import Errors, Failure, Toolbox, calls_of
from celery_ckpt.run.value_hook import ValueHook
from celery_ckpt.usage import Usage

if TYPE_CHECKING:
    from celery_ckpt.run.agent_run import AgentRun

#: A function of a model's name and its usage that returns the cost, or ``None`` if it is unknown.
Cost = Callable[[str, Usage], float | None]
NOTHING = Usage()
Coro = Coroutine[Any, Any, Any]


class Addition(Protocol):
    """What a recorded step adds to the run."""

    def note(self, step: Step) -> None:
        """Note what the position of the run must know."""
        ...

    def add(self, step: Step, conversation: Conversation, results: ToolResults) -> None:
        """Add it to the conversation, unless it is there, or to the pending results."""
        ...


class _ReplyAddition:
    """The messages of a model."""

    def __init__(self, position: Position) -> None:
        self._at = position
        #: The messages, if they were received just now.
        self.messages: list[Message] | None = None
        self._reply: Reply | None = None

    def reply_of(self, step: Step) -> Reply:
        """Return the reply, which is parsed once."""
        if self._reply is None:
            self._reply = Reply(step.__dict__["value"], self.messages)
        return self._reply

    def note(self, step: Step) -> None:
        self._at.note_questions(self.reply_of(step).messages)

    def add(self, step: Step, conversation: Conversation, results: ToolResults) -> None:
        self.reply_of(step).append_to(conversation)


class _ToolAddition:
    """The result of a tool call."""

    def __init__(self, call: ToolCall, asking: Message | None) -> None:
        self._call, self._asking = call, asking

    def note(self, step: Step) -> None:
        """Do nothing."""

    def add(self, step: Step, conversation: Conversation, results: ToolResults) -> None:
        # The value itself, not a copy: it is only read.
        results.add(conversation, self._call, step.__dict__["value"], self._asking)


class Calls:
    """Makes and replays the calls of one attempt."""

    def __init__(
        self,
        run: AgentRun,
        host: RunHost,
        bridge: Bridge,
        position: Position,
        book: StepBook,
        redaction: Redaction,
        cost: Cost | None,
        counted: str | None,
    ) -> None:
        self._run, self._host, self._bridge, self._at, self._book = run, host, bridge, position, book
        self._redaction, self._cost = redaction, cost
        #: The keys of steps that have a hook, and a lock for their hooks.
        self._hooked: set[str] = set()
        self._hooks = threading.RLock()
        #: The key of the last step whose usage is in ``run.usage``, or whose hook has changed the run;
        #: ``_counted`` has the keys of all.
        self.counted = counted
        self._counted = book.up_to(counted, 1 if position.is_past else 0)
        self._recognition = Recognition(run, position, book)
        self._tool_results = ToolResults()
        self._lock = threading.Lock()
        #: True once the body has ended.
        self._is_over = False

    def flush(self) -> None:
        """Append the pending tool results."""
        self._tool_results.flush(self._run.conversation)

    async def mark_manual_iterations(self) -> None:
        """Record that the body counts its iterations itself, so that a later attempt knows from its
        start which iteration its steps belong to.
        """
        if not self._book.has_manual_iterations:
            mark = self._new_step(MANUAL, 0, "", None)
            await self._bridge.io(self._record, mark, Usage(), None, None, None)

    async def step(
        self, name: str, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any], options: StepOptions
    ) -> Any:
        """See ``AgentRun.step``."""
        self._at.confirm_drop()
        options.refuse_misuse(fn, args)
        if options.on_value is not None:
            self._refuse_inside_a_step("run.step with on_value=")
        returns = options.returns or declared(fn)
        given = arguments_of(fn, args, kwargs)
        if options.key is None:
            key, step = await self._claim(name, *given)
        else:
            key, step = await self._claim_supplied(name, options.key, *given)
        hook = self._hook(key, options, lambda step: loaded(step.value, returns, name))
        if step is not None:
            self._repeat(options.kind or "step", name, step, hook)
            return loaded(step.value, returns, name)
        kept: list[Any] = []

        def value_of(result: Any) -> Any:
            kept.append(self._kept(result, returns, name))
            return kept[0]

        def used_by(result: Any) -> Usage | None:
            return (
                None if options.usage is None else self._used(options, loaded(kept[0], returns, name))
            )

        # Partials: the parameters of the function and of the bridge may have the same names.
        call = functools.partial(self._bridge.call, functools.partial(fn, *args, **kwargs))
        # The event of a call inside another one is the event of the outer one.
        event = None if step_under_way(self._run) else options.event
        step = await self._make(options.kind or "step", key, name, call, value_of, hook, event, used_by)
        return loaded(step.value, returns, name)

    def _hook(
        self, key: str, options: StepOptions, value_of: Callable[[Step], Any]
    ) -> ValueHook | None:
        if options.on_value is None and options.event is None:
            return None
        if options.on_value is not None:
            self._hooked.add(key)
        errors = self._host.queue_errors
        return ValueHook(self._run, self._at, options.on_value, value_of, errors, self._hooks)

    def _used(self, options: StepOptions, value: Any) -> Usage | None:
        try:
            return options.used(value)
        except self._host.queue_errors:
            raise
        except Exception as error:
            # The call is paid for: an error in the function must not lose its result.
            self._host.cost_failed(self._run, error)
            return None

    def _repeat(self, kind: CallKind, name: str, step: Step, hook: ValueHook | None) -> None:
        """Change the run as the recorded call did, unless the checkpoint contains its changes."""
        failure = None
        if hook is not None and step.key not in self._counted:
            failure = hook.apply(step)
            hook.note(step)
        self._replay(kind, name, step)
        if failure is not None:
            raise failure

    async def llm(self, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """See ``AgentRun.llm``."""
        self._at.confirm_drop()
        self._refuse_inside_a_step("run.llm")
        self.flush()
        name = f"llm:{name_of(fn)}"
        key, step = await self._claim(name, *arguments_of(fn, args, kwargs))
        if step is not None:
            self._replay("llm", name, step)
            addition = _ReplyAddition(self._at)
            self._add(addition, step)
            return addition.reply_of(step).value
        call = functools.partial(self._bridge.call, functools.partial(fn, *args, **kwargs))
        addition = _ReplyAddition(self._at)

        def value_of(result: Any) -> Any:
            at, redact = len(self._run.conversation), self._redaction.message
            value, addition.messages = recorded_reply(result, at, name, redact)
            return value

        step = await self._make(
            "llm", key, name, call, value_of, addition, CheckpointEvent.LLM_RESPONSE, usage_of
        )
        return addition.reply_of(step).value

    async def tool(self, call: ToolCall, fn: Callable[..., Any], returns: Any) -> Any:
        """See ``AgentRun.tool``."""
        self._at.confirm_drop()
        self._refuse_inside_a_step("run.tool")
        returns, name = returns or declared(fn), call.name
        step = await self._call_tool(
            call,
            # A partial: the parameters of a tool and of the bridge may have the same names.
            lambda: self._bridge.call(functools.partial(fn, **call.arguments)),
            lambda result: self._kept(result, returns, name),
        )
        return loaded(step.value, returns, name)

    async def _call_tool(
        self, call: ToolCall, make: Callable[[], Coro], value_of: Callable[[Any], Any]
    ) -> Step:
        key, asking, step = self._recognition.claim_call(call)
        addition = _ToolAddition(call, asking)
        if step is not None:
            self._replay("tool", call.name, step)
            self._add(addition, step)
            return step
        event = CheckpointEvent.TOOL_CALL_COMPLETE
        return await self._make("tool", key, call.name, make, value_of, addition, event)

    async def tools(self, reply: Any, tools: Any, parallel: bool, retry_on: Errors) -> list[Any]:
        """See ``AgentRun.tools``."""
        self._at.confirm_drop()
        self._refuse_inside_a_step("run.tools")
        raised = (*retry_on, *self._host.queue_errors, CheckpointError, AsyncInSyncBody)
        toolbox, calls = Toolbox(tools, raised), calls_of(reply)
        # Some models use an id twice. Then only the order tells which result belongs to which call.
        groups: dict[str, list[tuple[int, ToolCall]]] = defaultdict(list)
        for place, call in enumerate(calls):
            groups[call.id if parallel else ""].append((place, call))
        made = [functools.partial(self._tools_in_order, own, toolbox) for own in groups.values()]
        results = {place: own for ones in await self._bridge.gather(made) for place, own in ones}
        return [results[place] for place in range(len(calls))]

    async def _tools_in_order(
        self, calls: list[tuple[int, ToolCall]], toolbox: Toolbox
    ) -> list[tuple[int, Any]]:
        return [(place, await self._tool_of(call, toolbox)) for place, call in calls]

    async def _tool_of(self, call: ToolCall, toolbox: Toolbox) -> Any:
        returns, name = toolbox.returns(call), call.name

        def value_of(result: Any) -> Any:
            if isinstance(result, Failure):
                return self._kept(result.text, None, name)
            return self._kept(result, returns, name)

        step = await self._call_tool(call, lambda: self._tried(call, toolbox), value_of)
        try:
            return loaded(step.value, returns, name)
        except StepResultNotJson:
            if isinstance(step.value, str):
                return step.value  # the text of a failure
            raise

    async def _tried(self, call: ToolCall, toolbox: Toolbox) -> Any:
        prepared = toolbox.prepared(call)
        if isinstance(prepared, Failure):
            return prepared
        try:
            return await self._bridge.call(prepared)
        except Exception as error:
            failure = toolbox.failure(call, error)
            if failure is None:
                raise
            return failure

    def _kept(self, result: Any, returns: Any, name: str) -> Any:
        value = self._redaction.json(dumped(result, returns, name), "step")
        if self._redaction.is_active:
            loaded(value, returns, name)  # a value that cannot be read back must not be recorded
        return value

    def _add(self, addition: Addition, step: Step, trial: Trial | None = None) -> None:
        """Add a recorded result to the run, as the trial has it if nothing has changed since."""
        addition.note(step)
        if self._at.is_past or (trial is not None and trial.adopt(self._run.conversation)):
            return
        addition.add(step, self._run.conversation, self._tool_results)

    # -- replay -----------------------------------------------------------------------------------

    def begin_body(self) -> None:
        """Note that the body begins in this thread and task."""
        self._recognition.home = here()

    async def _claim(self, name: str, args: Any, kwargs: dict[str, Any]) -> tuple[str, Step | None]:
        key, step = self._recognition.claim(name, args, kwargs)
        if step is None and self._recognition.is_changed(key, name):
            try:
                await self._bridge.io(self._host.changed, self._run, name)
            except BaseException:
                self._book.release(key)
                raise
        return key, step

    def _replay(self, kind: CallKind, name: str, step: Step) -> None:
        """Count a recorded call, and report to the host that it was replayed."""
        self._host.replayed(TimedCall(kind, name, step.iteration))
        self._count(step)

    async def _claim_supplied(
        self, name: str, supplied: str, args: Any, kwargs: dict[str, Any]
    ) -> tuple[str, Step | None]:
        key, step, is_changed = self._recognition.claim_supplied(supplied, args, kwargs)
        if is_changed:
            report = functools.partial(self._host.changed, is_replayed=True)
            try:
                await self._bridge.io(report, self._run, name)
            except BaseException:
                self._book.release(key)
                raise
        return key, step

    async def report_iteration_changes(self) -> None:
        """At the end of an iteration, report to the host which parallel calls have changed."""
        for name in self._book.changed(self._at.steps):
            await self._bridge.io(self._host.changed, self._run, name)

    def report_changes(self) -> None:
        """At the end of the body, report the changed calls that no iteration has reported."""
        for name in self._book.changed():
            self._host.changed(self._run, name)

    # -- new calls -------------------------------------------------------------------------------------

    async def _make(
        self,
        kind: CallKind,
        key: str,
        name: str,
        call: Callable[[], Coro],
        value_of: Callable[[Any], Any],
        addition: Addition | None = None,
        event: CheckpointEvent | None = None,
        used_by: Callable[[Any], Usage | None] = lambda result: None,
    ) -> Step:
        iteration, inside = self._at.steps, Inside(self._run, key)
        hook = addition if isinstance(addition, ValueHook) else None
        failure = None
        try:
            await self._check()
            with self._bridge.under_way():
                timed = TimedCall(kind, name, iteration)
                with under_way(inside), self._host.around(timed):
                    result = await call()
                value = value_of(result)
                paid = self._paid(used_by(result), inside.reported)
                step = self._new_step(key, iteration, name, value, paid + inside.nested)
                if hook is not None:
                    failure = hook.apply(step)
                saved = await self._bridge.io(self._record, step, paid, timed, addition, event)
        except BaseException:
            self._give_back(key, inside)
            if hook is not None:
                hook.undo()
            raise
        if event is not None:
            with self._bridge.under_way():
                await self._bridge.io(self._host.emit_recorded, self._run, event, saved)
        if failure is not None:
            raise failure
        return step

    def _give_back(self, key: str, inside: Inside) -> None:
        """Release a failed call: its next try is the same call, and finds the steps inside it."""
        with self._lock:
            self._counted -= inside.claimed
        for own in (key, *inside.claimed):
            self._book.release(own)

    async def _check(self) -> None:
        if self._is_over:
            raise RunMisused(
                reason="run.step, run.llm or run.tool was called after the body returned. Await "
                "everything that the body starts."
            )
        if self._at.is_manual:
            return
        try:
            self._host.check(self._run)
        except HandOff:
            # A hand-off costs no call: parallel calls end before anything cancels them.
            if not step_under_way(self._run):
                await self._bridge.finish()
            raise

    async def hand_off(self) -> None:
        """See ``AgentRun.hand_off``."""
        self._at.confirm_drop()
        if step_under_way(self._run):
            raise RunMisused(
                reason="run.hand_off was called inside a call, whose result would be lost. Call it "
                "from the body."
            )
        # A hand-off costs no call: parallel calls end before anything cancels them.
        await self._bridge.finish()
        self._host.hand_off(self._run)

    async def finish(self, *, cancel: bool) -> None:
        """See ``AgentRun.finish``."""
        self._is_over = True
        await self._bridge.finish(cancel=cancel)

    def _new_step(
        self, key: str, iteration: int, name: str, value: Any, usage: Usage = NOTHING
    ) -> Step:
        fields = {
            "agent_id": self._run.agent_id,
            "run_id": self._run.run_id,
            "iteration": iteration,
            "key": key,
            "name": name.encode(errors="replace").decode(),
            "place": self._book.place_of(key),
            "value": value,
            "usage": usage,
        }
        return Step.model_validate(fields, context={"value"})  # which is plain JSON already

    def _record(
        self,
        step: Step,
        paid: Usage,
        call: TimedCall | None,
        addition: Addition | None,
        event: CheckpointEvent | None,
    ) -> Saved:
        try:
            return self._record_once(step, paid, call, addition, event)
        except CheckpointError:
            raise
        except Exception:
            # It may come from outside, as a soft time limit does, and the body may continue after it.
            # Each part can be repeated.
            self._record_once(step, paid, call, addition, event)
            raise

    def _record_once(
        self,
        step: Step,
        paid: Usage,
        call: TimedCall | None,
        addition: Addition | None,
        event: CheckpointEvent | None,
    ) -> Saved:
        if addition is None or event is None or call is None:
            self._host.record(step, paid, call)
            self._keep(step)
            if addition is not None:
                self._add(addition, step)
            return None
        made: list[Trial] = []

        def snapshot() -> Checkpoint:
            trial = Trial(self._tool_results, self._run.conversation)
            if not self._at.is_past:
                addition.add(step, trial.conversation, trial.results)
            made.append(trial)
            return self._run.snapshot(event, after=(step, trial.conversation))

        def keep() -> None:
            self._keep(step)
            self._add(addition, step, *made)

        return self._host.record_event(self._run, event, step, paid, call, snapshot, keep)

    def _keep(self, step: Step) -> None:
        self._book.keep(step)
        self._count(step)

    # -- usage -----------------------------------------------------------------------------------------

    def report(self, usage: Usage) -> None:
        """See ``AgentRun.report``."""
        inside = step_under_way(self._run)
        if inside is None:
            raise RunMisused(
                reason="run.report() was called outside a call. Use it inside the function passed to "
                "run.llm, run.tool or run.step; in a thread of your own, pass the context on "
                "(contextvars.copy_context().run)."
            )
        inside.report(usage)

    def _paid(self, carried: Usage | None, reported: Usage) -> Usage:
        """Return what a call itself has used: what its result contains, and what was reported."""
        if carried is not None:
            # What is reported without a model belongs to the model that replied.
            reported = reported.named(next(iter(carried.by_model)))
            reported = carried + reported
        if self._cost is None or not reported:
            return reported
        try:
            return reported.priced(self._cost)
        except self._host.queue_errors:
            raise
        except Exception as error:
            # The call is paid for: an error in the cost function must not lose its result.
            self._host.cost_failed(self._run, error)
            return reported

    def counted_with(self, step: Step) -> tuple[str | None, Usage | None]:
        """Return what ``counted`` will be when this step is counted, and what it will add."""
        if not self._counts(step) or step.key in self._counted:
            return self.counted, None
        return self.counted if self._at.is_past else step.key, step.usage

    def _count(self, step: Step) -> None:
        """Add what a call has used: each call once, and to the call around it."""
        if not self._counts(step):
            return
        inside = step_under_way(self._run)
        with self._lock:
            if step.key in self._counted:
                return
            if inside is None:
                self._at.usage += step.usage
            self._counted.add(step.key)
            if not self._at.is_past:
                self.counted = step.key
        if inside is not None:
            inside.add(step.usage)

    def _counts(self, step: Step) -> bool:
        """True if an exact checkpoint must say whether it contains what this step has changed."""
        return bool(step.usage) or step.key in self._hooked

    def _refuse_inside_a_step(self, what: str) -> None:
        if step_under_way(self._run):
            raise RunMisused(
                reason=f"{what} was called inside a step: a replay of that step would not add its "
                "messages to the conversation. Call it from the body."
            )

    def idempotency_key(self, name: str) -> str:
        """See ``AgentRun.idempotency_key``."""
        self._at.confirm_drop()
        run, inside = self._run, step_under_way(self._run)
        where, keys = (inside.key, inside.keys) if inside else (self._at.steps, self._at.keys)
        with self._lock:
            n = keys[name]
            keys[name] += 1
        return hashlib.sha256(encode([run.agent_id, run.run_id, where, name, n])).hexdigest()[:32]
