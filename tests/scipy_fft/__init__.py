"""SciPy's own tests of ``scipy.fft``, on ``device.fft``.

    pytest -p tests.scipy_fft.plugin --pyargs scipy.fft.tests.test_basic

SciPy asks a uarray backend for its transforms, and the plugin brings one. Each call waits for the
device, which is in a trio thread of its own, and whose host is a process. ``skips.txt`` lists the
skipped tests with reasons.
"""
