"""Decisions of a world, without I/O: hosts die at any point, and the world is whole again."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atomr_accel.worlds._membership import (
    Effect,
    Ended,
    FormCommunicator,
    LeaveCommunicator,
    Membership,
    Settled,
    WorldOpened,
)

from ..harness import sized

KILLED = RuntimeError("its host was killed")


class DyingHosts(RuleBasedStateMachine):
    """Kills of hosts, which come back, while a world gathers, joins, works and is resized.

    Reports of hosts arrive late, and in any order. Members that miss a dead one may say so before
    its death is reported. The death of a host that starts is not reported.
    """

    shrink = False

    @initialize(size=st.integers(1, 4))
    def open(self, size: int) -> None:
        self.world = Membership(range(size), shrink=self.shrink)
        self.known = size
        self.starting = set(range(size))  # hosts that take no ops yet
        self.untold: set[int] = set()  # those whose death was not reported
        self.joining: dict[int, set[int]] = {}  # members that have not joined, by epoch
        self.ops: dict[int, set[int]] = {}  # members that have not answered
        self.communicator: int | None = None
        self.missed = False  # whether others have failed since a death was reported

    def happen(self, effects: list[Effect]) -> None:
        """Check effects in their order."""
        for effect in effects:
            match effect:
                case FormCommunicator(epoch, members):
                    assert self.communicator is None
                    assert epoch not in self.joining
                    self.communicator = epoch
                    self.joining[epoch] = set(members)
                case LeaveCommunicator(epoch):
                    assert self.communicator == epoch
                    self.communicator = None
                case WorldOpened(epoch):
                    assert self.communicator == epoch == self.world.epoch
                    assert not self.joining[epoch]
                    self.missed = False
                case Settled(op, broken):
                    assert (broken is None) == (not self.ops.pop(op))
                case Ended(broken):
                    raise AssertionError(broken)

    def lost(self, member: int) -> None:
        self.missed = False
        self.happen(self.world.lost(member, KILLED))

    def join(self, epoch: int, member: int) -> None:
        self.joining[epoch].discard(member)
        self.happen(self.world.joined(epoch, member))

    # --- hosts ------------------------------------------------------------------------------

    @rule(data=st.data())
    def host_dies(self, data: st.DataObject) -> None:
        member = data.draw(st.integers(0, self.known - 1))
        if member not in self.starting:  # otherwise its start begins anew
            self.starting.add(member)
            self.untold.add(member)

    @precondition(lambda self: self.untold)
    @rule(data=st.data())
    def death_is_reported(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.untold)))
        self.untold.discard(member)
        self.lost(member)

    @precondition(lambda self: self.starting - self.untold)
    @rule(data=st.data())
    def host_takes_ops(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.starting - self.untold)))
        self.starting.discard(member)
        self.happen(self.world.ready(member))

    # --- answers ----------------------------------------------------------------------------

    @precondition(lambda self: any(self.joining.values()))
    @rule(data=st.data())
    def member_joins(self, data: st.DataObject) -> None:
        epochs = [epoch for epoch, waiting in self.joining.items() if waiting]
        epoch = data.draw(st.sampled_from(epochs))  # it may have passed
        self.join(epoch, data.draw(st.sampled_from(sorted(self.joining[epoch]))))

    @precondition(lambda self: self.ops)
    @rule(data=st.data())
    def member_answers(self, data: st.DataObject) -> None:
        op = data.draw(st.sampled_from(sorted(self.ops)))
        member = data.draw(st.sampled_from(sorted(self.ops[op])))
        self.ops[op].discard(member)
        self.happen(self.world.answered(op, member))

    @precondition(lambda self: self.untold.intersection(self.world.members))
    @rule(data=st.data())
    def op_of_the_dead_fails(self, data: st.DataObject) -> None:
        if self.communicator is not None:
            dead = sorted(self.untold.intersection(self.world.members))
            self.lost(data.draw(st.sampled_from(dead)))

    @precondition(lambda self: self.untold.intersection(self.world.members) and not self.missed)
    @rule(data=st.data())
    def op_of_another_fails(self, data: st.DataObject) -> None:
        if self.communicator is not None:
            self.missed = True
            member = data.draw(st.sampled_from(self.world.members))
            self.happen(self.world.failed(self.world.epoch, member, KILLED))

    # --- the program ------------------------------------------------------------------------

    @precondition(lambda self: self.world.phase == "whole")
    @rule()
    def op_begins(self) -> None:
        self.ops[self.world.begin(self.world.members)] = set(self.world.members)

    @precondition(lambda self: not self.ops)
    @rule(kept=st.sets(st.integers(0, 3), max_size=3), more=st.integers(1, 2))
    def world_is_resized(self, kept: set[int], more: int) -> None:
        present = self.world.members
        members = [present[at] for at in sorted(kept) if at < len(present)]
        new = range(self.known, self.known + more)
        self.known += more
        self.starting.update(new)
        self.missed = False
        self.happen(self.world.resize([*members, *new]))

    @rule()
    def world_is_restarted(self) -> None:
        ready = [member for member in self.world.members if member not in self.starting]
        self.missed = False
        self.happen(self.world.restart(KILLED))
        self.starting.update(ready)  # to be reported anew
        self.untold.clear()  # nobody was there to be told

    # --- what holds -------------------------------------------------------------------------

    @invariant()
    def world_is_not_over(self) -> None:
        assert self.world.phase != "over"
        assert self.world.members
        assert self.world.in_flight == len(self.ops)
        assert self.communicator in {None, self.world.epoch}
        assert (self.communicator is None) == (self.world.phase == "gathering")

    def teardown(self) -> None:
        """The world is whole once no host is killed any more."""
        if not hasattr(self, "world"):  # it was not opened
            return
        before = self.world.members
        while self.untold:
            self.lost(self.untold.pop())
        while self.starting:
            self.happen(self.world.ready(self.starting.pop()))
        for member in sorted(self.joining[self.world.epoch]):
            self.join(self.world.epoch, member)
        assert self.world.phase == "whole"
        if self.shrink:
            assert set(self.world.members) <= set(before)
        else:
            assert self.world.members == before


class DyingHostsThatAreLeft(DyingHosts):
    """Kills of hosts in a world that goes on without the dead."""

    shrink = True


@pytest.mark.slow
@pytest.mark.parametrize("machine", [DyingHosts, DyingHostsThatAreLeft])
def test_a_world_is_whole_again_wherever_hosts_die(machine: type[DyingHosts]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=sized(100, 2000), stateful_step_count=40, deadline=None),
    )


def test_last_rank_of_a_world_that_shrinks_is_waited_for() -> None:
    world = Membership(range(2), shrink=True)
    for member in range(2):
        world.ready(member)
    for member in range(2):
        world.joined(1, member)
    assert world.lost(0, KILLED)[0] == LeaveCommunicator(1)
    world.joined(2, 1)
    op = world.begin([1])
    settled, left = world.lost(1, KILLED)
    assert isinstance(settled, Settled)
    assert (settled.op, left) == (op, LeaveCommunicator(2))
    assert (world.phase, world.members) == ("gathering", (1,))
    assert world.ready(1) == [FormCommunicator(3, (1,))]
    ended = world.gone(1, KILLED)[-1]
    assert isinstance(ended, Ended)
    assert world.phase == "over"


def test_failures_beside_a_death_do_not_end_a_world() -> None:
    world = Membership(range(2))
    for member in range(2):
        world.ready(member)
    for epoch in range(1, 20, 2):
        assert world.failed(epoch, 0, KILLED)[-1] == FormCommunicator(epoch + 1, (0, 1))
        world.lost(1, KILLED)
        assert world.ready(1) == [FormCommunicator(epoch + 2, (0, 1))]
    world.failed(21, 0, KILLED)
    world.failed(22, 0, KILLED)
    assert isinstance(world.failed(23, 0, KILLED)[-1], Ended)
