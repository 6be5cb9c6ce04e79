"""The pytest plugin, as programs use it: in runs of pytest of their own."""

from __future__ import annotations

import os

import pytest

from ..harness import BACKEND, ROOT

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow  # each is a run of pytest

SETTINGS = """
[pytest]
trio_mode = true
filterwarnings = error
"""


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini(SETTINGS)
    return pytester


def run(tests: pytest.Pytester, *options: str) -> pytest.RunResult:
    return tests.runpytest_subprocess(
        *("-p", "atomr_accel.testing.pytest_plugin", "-p", "no:cacheprovider"),
        *("--accel-isolation", "thread", "--accel-backend", BACKEND, *options),
    )


def test_a_device_for_each_test(tests: pytest.Pytester) -> None:
    tests.makepyfile(
        """
        seen = []

        async def test_one(device):
            seen.append(device)
            assert (await device.get(await device.zeros(3)) == 0).all()

        async def test_two(device):
            assert device not in seen
            assert seen[0].closed
        """
    )
    run(tests).assert_outcomes(passed=2)


def test_a_device_for_each_module(tests: pytest.Pytester) -> None:
    source = """
        import numpy as np
        import pytest

        kept = []

        async def keep(device, value):
            kept.append((device, await device.put(np.full(3, value))))

        async def look(device, *, like):
            first, ref = kept[0]
            assert device is first
            return (await device.get(ref) == like).all()

        def test_one(module_device):
            module_device.run(keep, 2.0)

        def test_two(module_device):
            assert module_device.run(look, like=2)
            with pytest.raises(ValueError, match="mine"):
                module_device.run(wrong)

        async def wrong(device):
            raise ValueError("mine")
        """
    tests.makepyfile(test_a=source, test_b=source)
    run(tests).assert_outcomes(passed=4)


def test_a_module_that_loses_its_device_is_told(tests: pytest.Pytester) -> None:
    tests.makepyfile(
        """
        import pytest
        from atomr_accel import DeviceLost
        from atomr_accel.testing import poison

        async def lose(device):
            await poison(device)  # under isolation="thread" for good
            await device.zeros(3)

        async def use(device):
            await device.zeros(3)

        def test_one(module_device):
            with pytest.raises(DeviceLost):
                module_device.run(lose)

        def test_two(module_device):
            with pytest.raises(DeviceLost, match="is lost"):
                module_device.run(use)
        """
    )
    result = run(tests)
    result.assert_outcomes(passed=2, errors=1)  # at the end: what left the block
    result.stdout.fnmatch_lines(["*DeviceLost*"])


def test_hypothesis_with_a_device_for_each_module(tests: pytest.Pytester) -> None:
    tests.makepyfile(
        """
        import numpy as np
        from hypothesis import given, settings, strategies as st

        devices = set()

        @settings(max_examples=20, deadline=None)
        @given(numbers=st.lists(st.floats(-10, 10), min_size=1))
        def test_put_and_get(module_device, numbers):
            async def check(device):
                devices.add(device)
                assert (await device.get(await device.put(np.array(numbers)))).tolist() == numbers

            module_device.run(check)

        def test_it_was_one_device():
            assert len(devices) == 1
        """
    )
    run(tests).assert_outcomes(passed=2)


@pytest.mark.parametrize("word", ["async ", ""])
def test_hypothesis_with_a_device_for_each_test_names_the_other_fixture(
    tests: pytest.Pytester, word: str
) -> None:
    tests.makepyfile(
        f"""
        from hypothesis import given, strategies as st

        @given(number=st.floats(-10, 10))
        {word}def test_put(device, number):
            assert False, "never called"
        """
    )
    result = run(tests)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["`device` must be*not with @given*use `module_device`*"])


def test_hypothesis_with_a_device_for_each_example(tests: pytest.Pytester) -> None:
    tests.makepyfile(
        """
        import numpy as np
        from hypothesis import HealthCheck, given, settings, strategies as st
        from atomr_accel import open_device

        @settings(max_examples=3, deadline=None)
        @given(number=st.floats(-10, 10))
        async def test_put_and_get(accel_backend, number):
            async with open_device(backend=accel_backend, isolation="thread") as device:
                assert await device.get(await device.put(number)) == number
        """
    )
    run(tests).assert_outcomes(passed=1)


def test_without_pytest_trio_it_says_what_to_install(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests.makeini("[pytest]\n")
    (tests.path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda *name: None if name == ('pytest_trio',) else find(*name)\n"
    )
    tests.makepyfile(
        """
        def test_one(device):
            raise AssertionError

        def test_two(module_device):
            async def name(device):
                return device.name

            assert module_device.run(name)
        """
    )
    monkeypatch.setenv("PYTHONPATH", f"{tests.path}{os.pathsep}{os.environ['PYTHONPATH']}")
    result = run(tests, "-p", "no:trio")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["the fixture `device` needs pytest-trio: pip install pytest-trio*"]
    )
    assert "Traceback" not in result.stdout.str()


def test_a_backend_that_is_not_there_is_said(tests: pytest.Pytester) -> None:
    tests.makepyfile("def test_one(module_device): pass\nasync def test_two(device): pass")
    result = tests.runpytest_subprocess(
        *("-p", "atomr_accel.testing.pytest_plugin", "--accel-backend", "tpu")
    )
    result.assert_outcomes(errors=1, failed=1)
    result.stdout.fnmatch_lines(["*no backend 'tpu'; expected one of*"])
