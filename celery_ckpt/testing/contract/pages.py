"""The contract of partial reads: ``history`` with limits, and ``messages``."""

from __future__ import annotations

import pytest

from celery_ckpt.checkpoint import Checkpoint, Entry
from celery_ckpt.conversation import Conversation
from celery_ckpt.store import CheckpointStore
from celery_ckpt.testing.contract.fixtures import ContractFixtures
from celery_ckpt.testing.factories import make_checkpoint, make_conversation, make_message

BOUNDS = ((0, None), (0, 2), (1, 3), (2, 2), (3, 1), (-2, None), (1, -1), (-99, 99), (99, None))


def assert_pages_are_slices(store: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Assert that pages of a checkpoint's messages are what a slice of them is."""
    messages = checkpoint.conversation.messages
    for start, stop in BOUNDS:
        page = store.messages(checkpoint.id, start, stop)
        assert page is not None
        assert (page.agent_id, page.checkpoint_id) == (checkpoint.agent_id, checkpoint.id)
        assert page.messages == messages[start:stop]
        assert page.total == len(messages)
        assert page.start == slice(start, stop).indices(len(messages))[0]


class PagesContract(ContractFixtures):
    """A page is the part of the whole that was asked for."""

    def test_a_history_is_read_page_by_page(self, store: CheckpointStore) -> None:
        saved = [make_checkpoint("agent", iteration=i) for i in range(7)]
        for checkpoint in saved:
            store.save(checkpoint)
        store.save(make_checkpoint("other"))
        whole = store.history("agent")

        pages, before = [], None
        while page := store.history("agent", limit=3, before=before):
            pages.append(page)
            before = page[-1].seq

        assert [len(page) for page in pages] == [3, 3, 1]
        assert [info for page in pages for info in page] == whole
        assert store.history("agent", before=whole[2].seq) == whole[3:]
        assert store.history("agent", limit=99) == whole
        assert store.history("agent", limit=0) == []

    def test_pages_of_a_history_continue_after_a_removal_and_a_save(
        self, store: CheckpointStore
    ) -> None:
        saved = [make_checkpoint("agent", iteration=i) for i in range(5)]
        for checkpoint in saved:
            store.save(checkpoint)
        first = store.history("agent", limit=2)

        store.remove("agent", [first[-1].id])
        store.save(make_checkpoint("agent", iteration=9))

        rest = store.history("agent", before=first[-1].seq)
        assert [info.iteration for info in rest] == [2, 1, 0]

    def test_a_negative_limit_of_a_history_is_refused(self, store: CheckpointStore) -> None:
        with pytest.raises(ValueError, match="limit"):
            store.history("agent", limit=-1)

    def test_the_history_counts_messages_and_shows_pins(self, store: CheckpointStore) -> None:
        first, second = make_checkpoint("agent", make_conversation(4)), make_checkpoint("agent")
        store.save(first)
        store.save(second)
        store.pin(first.id, "mine")

        [newest], [oldest] = store.history("agent", limit=1), store.history("agent")[1:]

        assert (newest.id, newest.messages) == (second.id, len(second.conversation))
        assert (oldest.messages, oldest.pin) == (len(first.conversation), "mine")
        assert store.history("agent", limit=1, before=newest.seq) == [oldest]

    def test_a_page_of_messages_is_a_slice_of_the_conversation(self, store: CheckpointStore) -> None:
        conversation = make_conversation(4)
        first = make_checkpoint("agent", conversation)
        store.save(first)
        conversation.append(make_message())
        second = make_checkpoint("agent", conversation)
        store.save(second)

        assert_pages_are_slices(store, first)
        assert_pages_are_slices(store, second)

    def test_pages_are_right_after_a_compaction_and_for_an_entry(self, store: CheckpointStore) -> None:
        conversation = make_conversation(6)
        store.save(make_checkpoint("agent", conversation))
        entry = Entry(conversation=conversation)
        kept = conversation.messages
        conversation.replace([kept[0], make_message("summary"), *kept[-2:]])
        compacted = make_checkpoint("agent", conversation, entry=entry)
        store.save(compacted)
        conversation.append(make_message())
        later = make_checkpoint("agent", conversation, entry=entry)
        store.save(later)

        assert_pages_are_slices(store, compacted)
        assert_pages_are_slices(store, later)

    def test_a_page_of_an_empty_conversation_is_empty(self, store: CheckpointStore) -> None:
        empty = make_checkpoint("agent", Conversation())
        store.save(empty)
        assert_pages_are_slices(store, empty)

    def test_an_id_of_another_kind_has_pages_too(self, store: CheckpointStore) -> None:
        checkpoint = make_checkpoint("agent", make_conversation(3)).model_copy(update={"id": "foreign"})
        store.save(checkpoint)
        assert_pages_are_slices(store, checkpoint)

    def test_an_unknown_checkpoint_has_no_page(self, store: CheckpointStore) -> None:
        saved = make_checkpoint("agent")
        store.save(saved)
        store.remove("agent", [saved.id])
        assert store.messages(saved.id) is None
        assert store.messages("unknown") is None

    def test_messages_that_only_look_encrypted_are_returned(self, store: CheckpointStore) -> None:
        alike = {"ckpt:encrypted": "k.text"}
        saved = make_checkpoint("agent", Conversation(messages=[make_message(), alike]))
        store.save(saved)
        page = store.messages(saved.id, 1)
        assert page is not None
        assert [message.to_dict() for message in page.messages] == [alike]
