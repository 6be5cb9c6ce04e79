"""NumPy's tests of its functions on arrays, and SciPy's of ``scipy.linalg``, on a device.

    pytest -p tests.numpy_suites.plugin --pyargs numpy.lib.tests.test_arraysetops

Functions of ``device.array``, ``device.xp``, ``device.tensor`` and ``device.linalg`` replace theirs
where tests call them, and each call waits for the device. The device runs in its own trio thread;
its host is another process. A call with a dtype, a subclass or an option that only NumPy has goes
to NumPy. A test is skipped if no call of it reaches the device, or if it fails by a missing warning
or the words of an error alone. ``skips.txt`` lists other skipped tests with reasons.
"""
