"""NumPy's tests of ``numpy.linalg`` and SciPy's of ``scipy.linalg``, on ``device.linalg``.

    pytest -p tests.linalg_suites.plugin --pyargs numpy.linalg.tests.test_linalg

The device's functions replace theirs, and each call waits for the device. The device runs in its
own trio thread; its host is another process, in which the functions are not replaced. ``skips.txt``
lists the skipped tests with reasons; an option that only they have skips its test.
"""
