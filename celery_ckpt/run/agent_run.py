"""AgentRun: what a body works with. It records and replays calls. Its host decides what is saved.

    body ── llm, tools, step ───> Calls: replay what is recorded, else call, record, append, emit
    body ── iterations ─────────> append tool results ─> emit ITERATION ─> may hand off ─> the next
    body ── emit ───────────────> manual: for the rest of the iteration, checkpoints are exact
    body ── checkpoint ─────────> the same, if the body itself has changed the conversation

Everything is written once, as coroutines. A bridge turns it into what sync and async bodies see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from pydantic import BaseModel

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import DEFAULT_MAX_TOKENS, Conversation
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message, ToolCall
from celery_ckpt.names import checked_name
from celery_ckpt.records import CallKind, Step
from celery_ckpt.retention.report import PIN, without_pin
from celery_ckpt.run.bridge import Bridge
from celery_ckpt.run.calls import Calls, Cost
from celery_ckpt.run.host import RunHost
from celery_ckpt.run.iterations import Iterations
from celery_ckpt.run.position import Position, is_end_of_iteration, restored
from celery_ckpt.run.redaction import KEEP_ALL, Redaction
from celery_ckpt.run.replay import step_under_way
from celery_ckpt.run.step_options import StepOptions
from celery_ckpt.run.steps import StepBook
from celery_ckpt.usage import Usage

P = ParamSpec("P")
T = TypeVar("T")


class HasDict(Protocol):
    """An object of an SDK that is not a pydantic model."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object as JSON."""
        ...


class HasOutput(Protocol):
    """A response of OpenAI's Responses API, whose items are appended as a list."""

    @property
    def output(self) -> list[Any]:
        """Return its items."""
        ...


#: A hook for the result of a step, and what a step has used.
OnValue: TypeAlias = Callable[[Any], object]
UsageOf: TypeAlias = Usage | Callable[[Any], Usage | None]
#: What a model function may return. Not ``Any``: to type checkers, that includes a coroutine.
ModelReply: TypeAlias = Mapping[str, Any] | BaseModel | HasDict


class AgentRun:
    """One attempt at a run, as its body sees it.

    In ``async def`` bodies ``llm``, ``tool``, ``tools``, ``step``, ``emit`` and ``checkpoint`` return
    awaitables, and the loop is ``async for``.
    """

    # The bridge is not in ``__dict__``: ``aio`` is a second object with the same ``__dict__``.
    __slots__ = ("__dict__", "__weakref__", "_bridge")
    _bridge: Bridge

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
        max_tokens: int = DEFAULT_MAX_TOKENS,
        redaction: Redaction = KEEP_ALL,
        cost: Cost | None = None,
    ) -> None:
        begin, book = restored(latest, run_id, max_tokens), StepBook(steps)
        #: The agent that the run works for.
        self.agent_id = agent_id
        #: The id of the Celery task: the same in all attempts.
        self.run_id = run_id
        #: The number of this attempt, counted from 1 in the store.
        self.attempt = attempt
        #: The Celery task, if the run is one.
        self.task = task
        #: True if a checkpoint of this run was restored, and not one of an earlier run.
        self.resumed = begin.resumed
        self._redaction, self._conversation = redaction, begin.conversation
        redaction.adopt(self._conversation)
        #: What the agent keeps besides its conversation: any JSON object.
        self.state: dict[str, Any] = begin.state
        #: Part of every checkpoint of the run; restored like the state.
        self.metadata: dict[str, str] = begin.metadata
        #: Objects of this process, such as clients: never stored, and empty in each attempt.
        self.local: dict[str, Any] = {}
        #: Itself, also in ``aio``: hosts and signals know one run.
        self._own = self
        self._host, self._bridge = host, bridge
        self._at = Position(begin, book.has_manual_iterations)
        self._calls = Calls(self, host, bridge, self._at, book, redaction, cost, begin.counted)
        if not bridge.is_async:
            self.begin_body()

    @property
    def conversation(self) -> Conversation:
        """The agent's messages. Append to it, or let ``llm`` and ``tool`` do so."""
        return self._conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        """Replace the conversation."""
        self._redaction.adopt(conversation, self._conversation)
        self._conversation = conversation

    @property
    def iteration(self) -> int:
        """The current iteration, or the one that ended last; 0 before the first."""
        return self._at.iteration

    @property
    def usage(self) -> Usage:
        """What the calls up to this point of the body have used, by model.

        It is the same in every attempt: a replayed call adds its recorded usage again. The total over
        all attempts is the ``usage`` of the run's record.
        """
        return self._at.usage

    @property
    def aio(self) -> AgentRun:
        """The same run, for code on an event loop inside a plain ``def`` body.

        All methods that are awaitable in an ``async def`` body are awaitable on it, and its loop is
        ``async for``. In an ``async def`` body it is the run itself.
        """
        if self._bridge.is_async:
            return self
        same = AgentRun.__new__(AgentRun)
        same.__dict__, same._bridge = self.__dict__, self._bridge.aio
        return same

    @property
    def is_kept(self) -> bool:
        """True if the run is recorded; False if the task was called directly, as in a test."""
        return self._host.is_kept

    @property
    def is_in_step(self) -> bool:
        """True inside the function of a recorded call: a replay of that call does not call it."""
        return step_under_way(self._own) is not None

    @property
    def stopping(self) -> bool:
        """True once the worker is shutting down, or the attempt must end. It costs nothing to ask."""
        return self._host.is_stopping(self._own)

    # -- for the body ----------------------------------------------------------------------------------

    def iterations(self, limit: int | None = None) -> Iterations:
        """Return the loop: iterations from 1, or from where the run was, up to and including ``limit``.

        Raises:
            RunMisused: the run already has a loop.
        """
        self._at.begin_loop()
        return Iterations(
            self._bridge,
            lambda: self._advance(limit),
            lambda: self._at.drop(self.conversation, self.state, self.metadata),
        )

    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[Any]],
        /,
        *args: Any,
        returns: type[T],
        key: str | None = None,
        kind: CallKind | None = None,
        on_value: OnValue | None = None,
        usage: UsageOf | None = None,
        **kwargs: Any,
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        returns: type[T],
        key: str | None = None,
        kind: CallKind | None = None,
        on_value: OnValue | None = None,
        usage: UsageOf | None = None,
        **kwargs: Any,
    ) -> T: ...
    # One for each keyword: a call without any is checked against the parameters of its function.
    @overload
    def step(  # type: ignore[overload-overlap]
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        key: str,
        kind: CallKind | None = None,
        on_value: OnValue | None = None,
        usage: UsageOf | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    def step(  # type: ignore[overload-overlap]
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        kind: CallKind,
        on_value: OnValue | None = None,
        usage: UsageOf | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    def step(  # type: ignore[overload-overlap]
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        on_value: OnValue,
        usage: UsageOf | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    def step(  # type: ignore[overload-overlap]
        self, name: str, fn: Callable[..., T], /, *args: Any, usage: UsageOf, **kwargs: Any
    ) -> T: ...
    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(  # type: ignore[misc]  # a function may have parameters of these names and other types
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        returns: Any = None,
        key: str | None = None,
        kind: CallKind | None = None,
        on_value: OnValue | None = None,
        usage: UsageOf | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call ``fn(*args, **kwargs)`` and record its result. If it is recorded, only return it.

        A result is JSON, or something that ``returns`` (or the pydantic models in the function's
        annotation) can read back.

        ``key`` identifies the call, in place of its name, iteration and arguments. It must be unique in
        the run. If the arguments have changed, the record is used all the same, and ``on_changed``
        decides whether that is reported or fails the run.

        ``kind`` is ``"llm"``, ``"tool"`` or ``"step"``: a model call emits LLM_RESPONSE, and a tool
        call TOOL_CALL_COMPLETE. The conversation is not changed.

        ``on_value`` is called with the result when it is recorded: what it changes in the conversation
        and the state is part of the same checkpoint. A replay calls it at the same place, and changes
        them again.

        ``usage`` is what the call has used: a ``Usage``, or a function of the result.

        These keywords belong to ``step``. If ``fn`` has a parameter of the same name, pass it by
        position, or bind it with ``functools.partial``.

        Raises:
            StepResultNotJson: the result is neither. Nothing was recorded.
            RunMisused: a keyword is not what it must be, or could be meant for ``fn``; two calls have
                the same key; or ``on_value`` is used inside a call.
        """
        options = StepOptions(returns, key, kind, on_value, usage)
        return self._bridge.run(self._calls.step(name, fn, args, kwargs, options))

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
        completion, or a list of messages. A chat completion contributes the message of its first
        choice; a response of the Responses API all output items, as a list; an Anthropic message its
        role and content.

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
        """Call ``fn(**call.arguments)``, record the result under the call's id and append it in the
        shape of its provider; emits TOOL_CALL_COMPLETE. Tools may run in parallel: their results are
        appended in the order of the calls.
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
    # mypy a dict of functions with different parameters is not a dict of callables.
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

        ``reply`` is what ``llm`` returned, and ``tools`` maps names to functions; functions without a
        mapping are named by their ``__name__``. Calls run in parallel: in threads, or as tasks in
        ``async def`` bodies. With ``parallel=False`` they run one after the other.

        An unknown tool, invalid arguments and an exception of a tool become a result that the model
        reads, such as ``Error: ValueError: no such city``. Exceptions of the types in ``retry_on`` are
        raised after the other calls have ended. Nothing is recorded for their calls, so the task's
        retry makes them again.

        Raises:
            StepResultNotJson: the result of a tool cannot be recorded.
            RunMisused: ``reply`` or ``tools`` is something else, or it is called inside a step.
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
        """Report what the current call uses. It is recorded with the result of the call.

        The usage in a completion is counted automatically: report only what it does not contain.
        Without ``model``, it counts for the model that replied.

        Raises:
            RunMisused: it is called outside a call.
            NotJson: a count is not an integer of at least 0, or the cost is not a number.
        """
        counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        self._calls.report(Usage.of(model, **counts, cached_tokens=cached_tokens, cost=cost))

    def emit(self, event: CheckpointEvent) -> Any:
        """Emit an event manually. Outside a loop, ITERATION counts iterations."""
        return self._bridge.run(self._emit(CheckpointEvent(event)))

    def checkpoint(self, *, pin: str | None = None, **metadata: Any) -> Any:
        """Save a checkpoint now, with more metadata for this one only; returns it.

        In an iteration whose messages were all added by ``llm`` and ``tool``, a resume enters the
        iteration again and replays it. If the body itself has appended or replaced messages, or has no
        loop, a resume continues with exactly what was saved: the code of the iteration, or of the
        body, runs again on the saved conversation and state.

        With ``pin``, a label, no sweep ever removes it.
        """
        if pin is not None:
            metadata[PIN] = checked_name(pin, "A pin's label")
        return self._bridge.run(self._checkpoint(metadata))

    def hand_off(self) -> Any:
        """Hand the run off at this place: save it, and return it to its queue. No retry is consumed.

        The next attempt gets here by replay, and continues: an attempt that has done nothing new is not
        handed off again. Nor is a run that is not kept.

        Raises:
            RunMisused: it is called inside a call, which would have to be made again.
        """
        return self._bridge.run(self._calls.hand_off())

    def idempotency_key(self, name: str) -> str:
        """Return a key for services that process a request only once: the same in every attempt.

        It differs by run, iteration, name and the number of keys asked for; inside a step, by step.
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
        # A resume enters the last iteration again, unless no replay can rebuild it.
        with at.ending(not is_last or at.is_manual):
            if not at.is_complete:
                await self._bridge.io(self._host.emit, self._own, CheckpointEvent.ITERATION)
            at.is_end_emitted = True
            if not (is_last and at.is_manual):
                self._host.check(self._own)
            if not is_last:
                # No hand-off after the last iteration: the run would only enter it again.
                await self._bridge.io(self._host.iteration_ended, self._own)

    async def _emit(self, event: CheckpointEvent) -> None:
        self._at.confirm_drop()
        is_end = event is CheckpointEvent.ITERATION
        if is_end and not self._at.has_loop:
            await self._calls.mark_manual_iterations()
            self._at.count_manually()
        if not self._at.is_past:
            self._at.is_manual = True
        with self._at.ending(is_end and not self._at.has_left_loop):
            await self._bridge.io(self._host.emit, self._own, event)
            self._host.check(self._own)

    async def _checkpoint(self, metadata: dict[str, Any]) -> Checkpoint:
        at = self._at
        at.confirm_drop()
        # Without a loop there is no iteration to enter again: a resume has only what is saved.
        is_kept = at.is_in_or_after_loop and not at.is_edited(self.conversation)
        if not (is_kept or at.is_past):
            at.is_manual = True
        checkpoint = self.snapshot(metadata={key: str(value) for key, value in metadata.items()})
        await self._bridge.io(self._host.save, self._own, checkpoint)
        self._host.check(self._own)
        return checkpoint

    # -- for the host ----------------------------------------------------------------------------------

    @property
    def is_manual(self) -> bool:
        """True if the body did something manually in this iteration: its checkpoints are exact."""
        return self._at.is_manual

    def _redact(self) -> None:
        """Redact in place what the next iteration, or an exact checkpoint, starts with."""
        self._redaction.in_place(self.state, "state")
        self._redaction.in_place(self.metadata, "metadata")

    def snapshot(
        self,
        event: CheckpointEvent | None = None,
        metadata: dict[str, str] | None = None,
        after: tuple[Step, Conversation] | None = None,
    ) -> Checkpoint:
        """Return a checkpoint of the run as it is now, from which a later attempt can continue.

        With ``after``, return it as it will be when that step is recorded: with that conversation, and
        with the usage of the step.
        """
        at, state, own = self._at, self.state, self.metadata
        given = {**own, **metadata} if metadata else own
        if self._redaction.is_active:
            if at.is_manual:
                self._redact()
            # Otherwise not in place: a replay takes no snapshots, and must find the state as it was.
            state = self._redaction.json(state, "state")
            own = self._redaction.json(own, "metadata")
            given = self._redaction.json({**own, **metadata}, "metadata") if metadata else own
        conversation, counted, more = self._conversation, self._calls.counted, None
        if after is not None:
            step, conversation = after
            counted, more = self._calls.counted_with(step)
        place = at.snapshot_fields(event, more)
        is_exact = place.get("entry") is None
        kept = own if is_exact else at.metadata
        return Checkpoint.new(
            self.agent_id,
            conversation,
            run_id=self.run_id,
            state=state,
            metadata=given,
            run_metadata=None if kept == (without_pin(given) if PIN in given else given) else kept,
            # Only an exact checkpoint includes the usage of its iteration: a replay must not add it.
            counted=counted if is_exact and not at.ended else None,
            **place,
        )

    def begin_body(self) -> None:
        """Note that the body begins in this thread and task: calls from others are parallel calls."""
        self._calls.begin_body()

    async def finish(self, *, cancel: bool) -> None:
        """Wait for the calls that outlive the body; with ``cancel``, cancel them first.

        They are paid for, so they are recorded. No other attempt may start before that.
        """
        await self._calls.finish(cancel=cancel)

    def flush_tool_results(self) -> None:
        """Append the tool results that are still pending. To be called when the body has returned.

        Raises what the host raises for recorded steps that no call has matched.
        """
        self._calls.flush()
        self._calls.report_changes()

    def explain(self, error: BaseException) -> None:
        """Add a note to an error that the body raises because its loop was skipped."""
        if isinstance(error, UnboundLocalError) and self._at.has_skipped_loop:
            error.add_note(
                "This attempt resumed after the run.iterations() loop, so the loop did not run again "
                "and bound no variable. A resume enters the last iteration again, unless the body "
                "saved that iteration manually (run.emit, or run.checkpoint after its own changes to "
                "the conversation) or the limit has become smaller. Keep in run.state what the code "
                "after the loop needs."
            )

    def resumes_beyond(self, checkpoint: Checkpoint) -> int:
        """Return the last iteration whose steps no resume from this checkpoint needs; 0 if none."""
        if checkpoint.run_id != self.run_id:
            return 0
        is_over = self._at.has_loop and is_end_of_iteration(checkpoint)
        return checkpoint.iteration if is_over else max(0, checkpoint.iteration - 1)
