"""Policies for devices: the chosen device, and which keys move when a device is left out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import ConsistentHash, DataLocality, Hints, MostFreeMemory
from atomr_accel.device.group._policies import policy_of
from atomr_accel.patterns import LeastLoaded, PowerOfTwo, RoundRobin

from .members import First, members

KEYS = st.lists(st.one_of(st.text(), st.binary(), st.integers()), min_size=1, max_size=30)


def test_the_one_with_the_most_free_memory() -> None:
    one, two, three = devices = members(3)
    one.memory, two.memory, three.memory = 10, 30, 30
    two.in_flight = 1
    assert MostFreeMemory().choose(devices, Hints()) is three


def test_the_one_that_is_nearest_and_of_these_the_idlest() -> None:
    one, two, three = devices = members(3)
    one.seconds, two.seconds, three.seconds = 1.0, 0.5, 0.5
    two.in_flight = 1
    policy = DataLocality()
    assert policy.choose(devices, Hints()) is three
    assert policy.choose([one, two], Hints()) is two


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded(), PowerOfTwo()])
def test_policies_of_replicas_choose_devices(policy: Any) -> None:
    devices = members(3)
    for _ in range(9):
        policy.choose(devices, Hints()).in_flight += 1
    assert sum(each.in_flight for each in devices) == 9
    if not isinstance(policy, PowerOfTwo):
        assert [each.in_flight for each in devices] == [3, 3, 3]


@given(keys=KEYS, count=st.integers(1, 8), balance=st.floats(1.01, 4))
def test_no_device_gets_much_more_than_its_share(
    keys: list[Any], count: int, balance: float
) -> None:
    devices = members(count)
    policy = ConsistentHash(balance, points=8)
    for number, key in enumerate(keys, 1):
        chosen: Any = policy.choose(devices, Hints(key=key))
        chosen.in_flight += 1
        assert chosen.in_flight <= math.ceil(balance * number / count)


@given(keys=KEYS, count=st.integers(2, 8), data=st.data())
def test_only_the_keys_of_a_device_that_is_left_out_move(
    keys: list[Any], count: int, data: st.DataObject
) -> None:
    devices = members(count)
    policy = ConsistentHash(math.inf, points=8)

    def homes(of: list[Any]) -> list[str]:
        return [policy.choose(of, Hints(key=key)).name for key in keys]

    before = homes(devices)
    assert homes(data.draw(st.permutations(devices))) == before
    gone = data.draw(st.sampled_from(devices))
    after = homes([each for each in devices if each is not gone])
    assert all(old in (new, gone.name) for old, new in zip(before, after, strict=True))
    assert gone.name not in after
    assert homes(devices) == before


def test_a_key_is_at_home_where_any_process_has_it() -> None:
    """Python's own hashes differ from process to process."""
    homes = [
        ConsistentHash().choose(members(4), Hints(key=key)).name
        for key in ("alice", b"alice", 7, "7", "\udcff")
    ]
    assert homes == ["fake:0", "fake:0", "fake:0", "fake:3", "fake:3"]


def test_many_keys_are_spread_evenly() -> None:
    devices = members(4)
    policy = ConsistentHash(math.inf)
    for key in range(1000):
        chosen: Any = policy.choose(devices, Hints(key=key))
        chosen.in_flight += 1
    assert all(150 < each.in_flight < 350 for each in devices)


def test_work_without_a_key_goes_where_there_is_least_to_do() -> None:
    one, two = devices = members(2)
    one.in_flight = 1
    assert ConsistentHash().choose(devices, Hints()) is two


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: ConsistentHash(1.0),
            ValueError,
            "(balance must be more than 1|points must be a whole number from 1)",
        ),
        (
            lambda: ConsistentHash(points=0),
            ValueError,
            "(balance must be more than 1|points must be a whole number from 1)",
        ),
        (lambda: ConsistentHash("2"), TypeError, "balance"),  # type: ignore[arg-type]
        (lambda: policy_of("best"), ValueError, "one of round_robin, .*, not 'best'"),  # type: ignore[arg-type]
        (lambda: policy_of(1), TypeError, "a method choose"),  # type: ignore[arg-type]
        (lambda: policy_of(ConsistentHash), TypeError, "not the class ConsistentHash"),  # type: ignore[arg-type]
        (lambda: Hints(near=(1,)), TypeError, "near must be GpuRefs, not int"),  # type: ignore[arg-type]
        (lambda: Hints(nbytes=-1), ValueError, "at least 0, not -1"),
        (lambda: Hints(key=1.5), TypeError, "key must be text, bytes or a whole number"),  # type: ignore[arg-type]
    ],
)
def test_policy_refuses_invalid_options(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_policy_is_found_by_its_name_or_is_itself() -> None:
    first = First()
    assert policy_of(first) is first
    assert isinstance(policy_of("data_locality"), DataLocality)
