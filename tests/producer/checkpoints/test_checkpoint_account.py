"""The account of a bucket's checkpoint memory: when recovery is due, and when not again."""

from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from tests.producer.queued import COST, drained, new_manager, write


def test_recovery_that_frees_too_little_is_not_tried_with_each_write() -> None:
    """All is held for a reader. One percent of the quota is two items here."""
    manager = new_manager(1000)
    manager.register("reader", 0, droppable=False)
    account = CheckpointAccount(200 * COST)
    due = []
    for item in range(186):
        write(manager, [item])
        account.note(manager)
        if account.is_short:
            due.append(manager.high_seqno)
            assert account.recover([manager]) == {}
    assert due == [180, 182, 184, 186]


def test_whoever_is_refused_looks_again_now_and_then_and_after_relief() -> None:
    account = CheckpointAccount(10 * COST)
    manager = new_manager(1000)
    manager.register("replica", 0, droppable=False)
    fullness = []
    for item in range(10):
        write(manager, [item])
        account.note(manager)
        fullness.append(account.is_full)
    assert fullness == [False] * 9 + [True]
    looks = [account.looks_again() for _ in range(130)]
    assert [index for index, is_due in enumerate(looks) if is_due] == [0, 64, 128]
    account.relieve()
    assert account.looks_again()
    assert not account.looks_again()


def test_recovery_is_due_at_the_mark_again_once_memory_was_below_it() -> None:
    manager = new_manager(1)
    account = CheckpointAccount(10 * COST)
    manager.register("reader", 0, droppable=False)
    write(manager, range(12))
    account.note(manager)
    account.recover([manager])
    assert not account.is_short
    manager.remove("reader")
    manager.remove_closed()
    account.note(manager)
    assert account.memory_bytes == 0
    write(manager, range(12, 21))
    account.note(manager)
    assert account.is_short


def test_who_is_refused_again_after_there_was_room_looks_at_once() -> None:
    account = CheckpointAccount(10 * COST)
    manager = new_manager(1)
    manager.register("replica", 0, droppable=False)
    write(manager, range(10))
    account.note(manager)
    fullness = [account.is_full]
    assert [account.looks_again() for _ in range(2)] == [True, False]
    drained(manager, "replica")
    manager.remove_closed()
    account.note(manager)
    fullness.append(account.is_full)
    manager.register("replica", manager.high_seqno, droppable=False)
    write(manager, range(10, 20))
    account.note(manager)
    assert [*fullness, account.is_full] == [True, False, True]
    assert account.looks_again()
