"""AgentRun: what a body works with. It records, replays and tells; what is saved, its host decides.

    body ── llm, tools, step ───> Calls: replay what is recorded, else call, record, add, tell
    body ── iterations ─────────> flush answers ─> tell the host ─> may hand off ─> the next
    body ── emit ───────────────> by its own hand: for the rest of the iteration checkpoints are exact
    body ── checkpoint ─────────> the same if the body itself has changed the conversation

All of it is written once, as coroutines; a bridge makes of it what sync and async bodies see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from pydantic import BaseModel

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.clock import Clock, system_clock
from celery_ckpt.conversation import DEFAULT_MAX_TOKENS, Conversation
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message, ToolCall
from celery_ckpt.names import checked_name
from celery_ckpt.records import Step
from celery_ckpt.retention.report import PIN, without_pin
from celery_ckpt.run.bridge import Bridge
from celery_ckpt.run.calls import Calls, Cost
from celery_ckpt.run.host import RunHost
from celery_ckpt.run.iterations import Iterations
from celery_ckpt.run.position import Position, is_end_of_iteration, restored
from celery_ckpt.run.redaction import KEEP_ALL, Redaction
from celery_ckpt.run.steps import StepBook
from celery_ckpt.usage import Usage

P = ParamSpec("P")
T = TypeVar("T")


class HasDict(Protocol):
    """An SDK's object that is no pydantic model."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        ...


class HasOutput(Protocol):
    """A response of OpenAI's Responses API, whose items are appended as a list."""

    @property
    def output(self) -> list[Any]:
        """Its items."""
        ...


#: What a model's client returns. Not ``Any``: to type checkers a coroutine would be one too.
ModelReply: TypeAlias = Mapping[str, Any] | BaseModel | HasDict


class AgentRun:
    """One attempt at a run, as its body sees it.

    In ``async def`` bodies ``llm``, ``tool``, ``tools``, ``step``, ``emit`` and ``checkpoint`` return
    awaitables, and the loop is ``async for``.
    """

    def __init__(
        self,
        agent_id: str,
        run_id: str,
        attempt: int,
        host: RunHost,
        bridge: Bridge,
        latest: Checkpoint | None,
        steps: list[Step],
        task: Any = None,
        clock: Clock = system_clock,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        redaction: Redaction = KEEP_ALL,
        cost: Cost | None = None,
    ) -> None:
        begin, book = restored(latest, run_id, max_tokens), StepBook(steps)
        #: The agent it works for.
        self.agent_id = agent_id
        #: The Celery task's id: the same in all attempts.
        self.run_id = run_id
        #: Which attempt this is, counted from 1 in the store.
        self.attempt = attempt
        #: The Celery task, if the run is one.
        self.task = task
        #: Was a checkpoint of this very run restored?
        self.resumed = begin.resumed
        self._redaction, self._conversation = redaction, begin.conversation
        redaction.adopt(self._conversation)
        #: What the agent keeps besides its conversation: any JSON object.
        self.state: dict[str, Any] = begin.state
        #: Goes into every checkpoint of the run; kept like the state.
        self.metadata: dict[str, str] = begin.metadata
        self._host, self._bridge, self._clock = host, bridge, clock
        self._at = Position(begin, book.has_manual_iterations)
        self._calls = Calls(self, host, bridge, self._at, book, redaction, cost, begin.counted)
        if not bridge.is_async:
            self.begin_body()

    @property
    def conversation(self) -> Conversation:
        """The agent's messages; append to it, or let ``llm`` and ``tool`` do so."""
        return self._conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        """Go on with another one."""
        self._redaction.adopt(conversation, self._conversation)
        self._conversation = conversation

    @property
    def iteration(self) -> int:
        """The iteration under way, or the one that ended last; 0 before the first."""
        return self._at.iteration

    @property
    def usage(self) -> Usage:
        """What the calls up to this point of the body have used, by model.

        It is the same in every attempt: a replayed call adds its recorded usage again. What was paid
        for, over all attempts, is the ``usage`` of the run's record.
        """
        return self._at.usage

    # -- the body's ------------------------------------------------------------------------------------

    def iterations(self, limit: int | None = None) -> Iterations:
        """The loop: iterations from 1, or from where the run was, up to and including ``limit``.

        Raises:
            RunMisused: it is the second loop of this run.
        """
        self._at.begin_loop()
        return Iterations(self._bridge, lambda: self._advance(limit), self._drop_loop)

    @overload
    def step(
        self, name: str, fn: Callable[..., Awaitable[Any]], *args: Any, returns: type[T], **kwargs: Any
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self, name: str, fn: Callable[..., Any], *args: Any, returns: type[T], **kwargs: Any
    ) -> T: ...
    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(
        self, name: str, fn: Callable[..., Any], *args: Any, returns: Any = None, **kwargs: Any
    ) -> Any:
        """Call ``fn(*args, **kwargs)`` and record its result; if that is recorded, only return it.

        A result is JSON, or what ``returns`` (or the pydantic models in the function's annotation) can
        be read back from.

        Raises:
            StepResultNotJson: it is neither; nothing was recorded.
        """
        return self._bridge.run(self._calls.step(name, fn, args, kwargs, returns))

    @overload
    def llm(
        self, fn: Callable[P, Awaitable[list[Any] | HasOutput]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[list[Message]]: ...
    @overload
    def llm(
        self, fn: Callable[P, Awaitable[Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Message]: ...
    @overload
    def llm(
        self, fn: Callable[P, list[Any] | HasOutput], *args: P.args, **kwargs: P.kwargs
    ) -> list[Message]: ...
    @overload
    def llm(self, fn: Callable[P, ModelReply], *args: P.args, **kwargs: P.kwargs) -> Message: ...
    def llm(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a model, record its message and append it to the conversation; emits LLM_RESPONSE.

        ``fn`` returns a message (a dict with a role, a ``Message``, an SDK's message), the SDK's whole
        completion, or a list of messages. Of a chat completion the message of the first choice is
        kept; of a response of the Responses API all output items, as a list; of an Anthropic message
        the role and the content.

        Raises:
            NotAMessage: ``fn`` returned something else, such as text or a stream. Nothing was recorded.
        """
        return self._bridge.run(self._calls.llm(fn, args, kwargs))

    @overload
    def tool(
        self, call: ToolCall, fn: Callable[..., Awaitable[T]], *, returns: Any = None
    ) -> Awaitable[T]: ...
    @overload
    def tool(self, call: ToolCall, fn: Callable[..., T], *, returns: Any = None) -> T: ...
    def tool(self, call: ToolCall, fn: Callable[..., Any], *, returns: Any = None) -> Any:
        """Call ``fn(**call.arguments)``, record it under the call's id and append the result in the
        shape its provider wants; emits TOOL_CALL_COMPLETE. Tools may run side by side: their results
        are appended in the order of the calls.
        """
        return self._bridge.run(self._calls.tool(call, fn, returns))

    @overload
    def tools(
        self,
        reply: Message | list[Message],
        tools: Mapping[str, Callable[..., Awaitable[Any]]] | Iterable[Callable[..., Awaitable[Any]]],
        parallel: bool = True,
        retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Awaitable[list[Any]]: ...
    # It returns Any, since async bodies may have tools that are plain functions. It takes Any, since to
    # mypy a dict of functions with different parameters is no dict of callables.
    @overload
    def tools(
        self,
        reply: Message | list[Message],
        tools: Mapping[str, Any] | Iterable[Any],
        parallel: bool = True,
        retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Any: ...
    def tools(
        self,
        reply: Message | list[Message],
        tools: Mapping[str, Any] | Iterable[Any],
        parallel: bool = True,
        retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Any:
        """Run all tool calls of a reply as ``tool`` does; returns their results in the order of the
        calls.

        ``reply`` is what ``llm`` returned, and ``tools`` maps names to functions; functions alone go
        by their ``__name__``. Calls run side by side: in threads, in ``async def`` bodies as tasks.
        With ``parallel=False`` they run one after the other.

        An unknown tool, arguments that do not fit and an exception of a tool become a result that the
        model reads, such as ``Error: ValueError: no such city``. Exceptions of the types in
        ``retry_on`` are raised once the other calls are finished. Nothing is recorded for their calls,
        so the task's retry makes them again.

        Raises:
            StepResultNotJson: a tool returned what cannot be recorded.
            RunMisused: ``reply`` or ``tools`` is something else, or it is called inside of a step.
        """
        errors = retry_on if isinstance(retry_on, tuple) else (retry_on,)
        return self._bridge.run(self._calls.tools(reply, tools, parallel, errors))

    def report(
        self,
        *,
        model: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: float | None = None,
    ) -> None:
        """Inside of a call: say what it uses. It is recorded with the call's result.

        The usage that a completion carries is counted by itself: report only what it does not say.
        Without a model, it counts for the one that answered.

        Raises:
            RunMisused: no call is being made here.
            NotJson: a count is not an integer of at least 0, or the cost is not a number.
        """
        counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        self._calls.report(Usage.of(model, **counts, cached_tokens=cached_tokens, cost=cost))

    def emit(self, event: CheckpointEvent) -> Any:
        """Say by hand that something happened; outside of a loop, ITERATION counts iterations."""
        return self._bridge.run(self._emit(CheckpointEvent(event)))

    def checkpoint(self, *, pin: str | None = None, **metadata: Any) -> Any:
        """Save now, with more metadata for this one checkpoint; returns it.

        In an iteration whose messages were all added by ``llm`` and ``tool``, a resume enters the
        iteration again and replays it. If the body itself has appended or replaced messages, or has no
        loop, a resume goes on with exactly what was saved: the code of the iteration, or of the body,
        runs again on the saved conversation and state.

        With ``pin``, a label, no sweep ever drops it.
        """
        if pin is not None:
            metadata[PIN] = checked_name(pin, "A pin's label")
        return self._bridge.run(self._checkpoint(metadata))

    def idempotency_key(self, name: str) -> str:
        """A key for a service that does the same request only once: the same in every attempt.

        It differs by run, iteration, name and how often it was asked for; inside of a step, by step.
        """
        return self._calls.idempotency_key(name)

    async def _advance(self, limit: int | None) -> int | None:
        self._calls.flush()
        await self._calls.report_iteration_changes()
        if self._at.is_iterating:
            await self._end_iteration(self._at.is_last(limit))
        self._redact()
        return self._at.advance(limit, self.conversation, self.state, self.metadata)

    async def _end_iteration(self, is_last: bool) -> None:
        at = self._at
        # A resume enters the last iteration again, unless no replay could rebuild it.
        with at.ending(not is_last or at.is_manual):
            if not at.is_complete:
                await self._bridge.io(self._host.emit, self, CheckpointEvent.ITERATION)
            at.is_end_emitted = True
            if not (is_last and at.is_manual):
                self._host.check(self)
            if not is_last:
                # After the last one there is nothing to make room for: a run that is handed off there
                # would only enter it again.
                await self._bridge.io(self._host.iteration_ended, self)

    def _drop_loop(self) -> None:
        self._at.drop(self.conversation, self.state, self.metadata)

    async def _emit(self, event: CheckpointEvent) -> None:
        self._at.confirm_drop()
        is_end = event is CheckpointEvent.ITERATION
        if is_end and not self._at.has_loop:
            await self._calls.mark_manual_iterations()
            self._at.count_manually()
        if not self._at.is_past:
            self._at.is_manual = True
        with self._at.ending(is_end and not self._at.has_left_loop):
            await self._bridge.io(self._host.emit, self, event)
            self._host.check(self)

    async def _checkpoint(self, metadata: dict[str, Any]) -> Checkpoint:
        at = self._at
        at.confirm_drop()
        # Without a loop there is no iteration to enter again: what is saved is all that a resume has.
        is_kept = at.is_in_or_after_loop and not at.is_edited(self.conversation)
        if not (is_kept or at.is_past):
            at.is_manual = True
        checkpoint = self.snapshot(metadata={key: str(value) for key, value in metadata.items()})
        await self._bridge.io(self._host.save, self, checkpoint)
        self._host.check(self)
        return checkpoint

    # -- the host's ------------------------------------------------------------------------------------

    @property
    def is_manual(self) -> bool:
        """Has the body done by hand, in this iteration, what only an exact checkpoint can hold?"""
        return self._at.is_manual

    def _redact(self) -> None:
        """What the next iteration, or an exact checkpoint, begins with is what is kept."""
        self._redaction.in_place(self.state, "state")
        self._redaction.in_place(self.metadata, "metadata")

    def snapshot(
        self, event: CheckpointEvent | None = None, metadata: dict[str, str] | None = None
    ) -> Checkpoint:
        """A checkpoint of this moment, from which a later attempt can go on."""
        at, state, own = self._at, self.state, self.metadata
        given = {**own, **metadata} if metadata else own
        if self._redaction.is_active:
            if at.is_manual:
                self._redact()
            # Otherwise not in place: a replay takes no snapshots, and must find the state as it was.
            state = self._redaction.json(state, "state")
            own = self._redaction.json(own, "metadata")
            given = self._redaction.json({**own, **metadata}, "metadata") if metadata else own
        place = at.snapshot_fields(event)
        is_exact = place.get("entry") is None
        kept = own if is_exact else at.metadata
        return Checkpoint.new(
            self.agent_id,
            self._conversation,
            clock=self._clock,
            run_id=self.run_id,
            state=state,
            metadata=given,
            run_metadata=None if kept == (without_pin(given) if PIN in given else given) else kept,
            # Only an exact one holds what steps of its iteration have used: a replay adds no more.
            counted=self._calls.counted if is_exact and not at.ended else None,
            **place,
        )

    def begin_body(self) -> None:
        """The body begins, in this thread and this task: calls from others are made side by side."""
        self._calls.begin_body()

    async def finish(self, *, cancel: bool) -> None:
        """The body has ended: wait for the calls that it has left under way, or cancel them first.

        What they cost is paid, so they are recorded; and nobody may go on elsewhere meanwhile.
        """
        await self._calls.finish(cancel=cancel)

    def flush_tool_results(self) -> None:
        """Append the tool results that are still pending. To be called when the body has returned.

        Raises what the host raises for recorded steps that no call has matched.
        """
        self._calls.flush()
        self._calls.report_changes()

    def explain(self, error: BaseException) -> None:
        """Add a note to an error of the body that comes of a loop that was skipped."""
        if isinstance(error, UnboundLocalError) and self._at.has_skipped_loop:
            error.add_note(
                "This attempt resumed after the run.iterations() loop, so the loop did not run again "
                "and bound no variable. A resume enters the last iteration again, unless the body "
                "saved that iteration by hand (run.emit, or run.checkpoint after its own changes to "
                "the conversation) or the limit has become smaller. Keep in run.state what the code "
                "after the loop needs."
            )

    def resumes_beyond(self, checkpoint: Checkpoint) -> int:
        """The largest k >= 1 whose steps nobody needs once this is the latest checkpoint; else 0."""
        if checkpoint.run_id != self.run_id:
            return 0
        is_over = self._at.has_loop and is_end_of_iteration(checkpoint)
        return checkpoint.iteration if is_over else max(0, checkpoint.iteration - 1)
