"""Run onnx's own tests of nodes through ``device.engine``, and count them by reason.

``python -m tests.onnx_nodes`` fails if a result differs from the one that comes with its test and
from onnxruntime's, or if a model raises another error than those of ``build``.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import trio
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from atomr_accel import AccelError, Device, GpuRef, LibraryError, Unsupported, open_device

REASONS: Final = (
    ("an input or output is not a tensor", r"take and give tensors only"),
    ("a type that buffers do not have", r"not of a buffer's"),
    ("an op that onnxruntime does not have", r"has no such op"),
    ("an op or opset that ONNX does not have", r"has no op|is not known to onnx"),
    ("onnxruntime refuses the model", r"did not load the model"),
    ("onnxruntime refuses the run", r"did not run the model"),
    ("not a valid model", r"must be a valid ONNX model"),
)

OTHERS: Final = {
    r"test_bernoulli.*": "random by nature",
}
"""Tests whose results cannot be compared, by a pattern of their names, with the reason."""


class Differs(Exception):
    """A result is not the one that comes with its test."""


class OtherResult(Exception):
    """A result is not the one that comes with its test, but onnxruntime's."""


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A value of a test, which may be a file's tensor."""
    return (
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    )


def _alone(case: Any, given: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results of onnxruntime by itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    feed = {name: _array(value) for name, value in zip(names, given, strict=True)}
    made: list[np.ndarray[Any, Any]] = session.run(None, feed)
    return made


async def check(device: Device, case: Any) -> None:
    """Run a test.

    Raises:
        AccelError, ValueError: it is refused.
        Differs: a result is another one.
        OtherResult: it is another one, and onnxruntime by itself gives the same.
    """
    engine = await device.engine.build(case.model.SerializeToString())
    for given, wanted in case.data_sets:
        refs = {
            each.name: await device.put(_array(value))
            for each, value in zip(engine.inputs, given, strict=True)
        }
        made = await engine(**refs)
        results = (made,) if isinstance(made, GpuRef) else made
        found = [await device.get(ref) for ref in results]
        expected = [_array(each) for each in wanted]
        if not _near(found, expected, case.rtol, case.atol):
            if _near(found, _alone(case, given), 1e-6, 1e-7):
                raise OtherResult
            raise Differs(f"{found}, not {expected}")


def _near(
    found: list[np.ndarray[Any, Any]],
    expected: list[np.ndarray[Any, Any]],
    rtol: float,
    atol: float,
) -> bool:
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        wide = np.complex128 if one.dtype.kind == "c" else np.float64
        if not np.allclose(one.astype(wide), other.astype(wide), rtol, atol, equal_nan=True):
            return False
    return True


def _reason(error: AccelError | ValueError) -> str | None:
    return next((name for name, words in REASONS if re.search(words, str(error))), None)


async def main(pattern: str, backend: str) -> int:
    """Run the tests whose names match, print counts, and return the number of failures."""
    counts: Counter[str] = Counter()
    names: defaultdict[str, list[str]] = defaultdict(list)
    cases = [case for case in load_model_tests(kind="node") if re.search(pattern, case.name)]
    async with open_device(0, backend=backend) as device:
        generation = device.generation
        for case in cases:
            skipped = next((why for name, why in OTHERS.items() if re.match(name, case.name)), None)
            if skipped is not None:
                counts[skipped] += 1
                continue
            try:
                await check(device, case)
                counts["passed"] += 1
            except (Unsupported, LibraryError, ValueError) as error:
                reason = _reason(error) or f"FAILED: {type(error).__name__}"
                counts[reason] += 1
                names[reason].append(f"{case.name}: {str(error)[:160]}")
            except OtherResult:
                reason = "onnxruntime itself gives another result"
                counts[reason] += 1
                names[reason].append(case.name)
            except (Differs, TypeError) as error:
                counts["FAILED"] += 1
                names["FAILED"].append(f"{case.name}: {error}")
        assert device.generation == generation
    for reason, listed in names.items():
        print(f"\n{reason}:")
        for line in listed:
            print("  " + line.replace("\n", " "))
    print()
    for reason, number in counts.most_common():
        print(f"{number:5} {reason}")
    return sum(number for reason, number in counts.items() if reason.startswith("FAILED"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="part of the tests' names")
    parser.add_argument("--backend", default="cpu")
    arguments = parser.parse_args()
    raise SystemExit(1 if trio.run(main, arguments.pattern, arguments.backend) else 0)
