"""NumPy's tests of ``numpy.linalg`` and SciPy's of ``scipy.linalg``, on ``device.linalg``.

    pytest -p tests.linalg_suites.plugin --pyargs numpy.linalg.tests.test_linalg

The functions that the device has stand in the place of theirs; each call waits for the device,
which is in a trio thread of its own, and its host in a process of its own, where the functions are
what they were. What is left out, and why, is told in ``skips.txt``; an option that only they have
skips its test.
"""
