"""Two tones under noise: find them in the spectrum, keep them alone, and go back."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

SAMPLES, RATE = 1 << 16, 48_000.0
TONES = (440.0, 1234.5)


async def main() -> None:
    """Transform, look, filter, transform back; check each against NumPy."""
    time = np.arange(SAMPLES) / RATE
    clean = sum(np.sin(2 * np.pi * tone * time) for tone in TONES)
    noisy = clean + np.random.default_rng().standard_normal(SAMPLES)

    async with open_device(0) as device:
        signal = await device.put(noisy)
        spectrum = await device.get(await device.fft.rfft(signal))
        error = np.abs(spectrum - np.fft.rfft(noisy)).max() / np.abs(spectrum).max()
        assert error < 1e-13, error

        frequencies = await device.get(await device.fft.rfftfreq(SAMPLES, 1 / RATE))
        loudest = np.argsort(np.abs(spectrum))[::-1]
        found = sorted({round(frequencies[peak]) for peak in loudest[:2]})
        assert np.allclose(found, TONES, atol=1.0), found

        near = np.abs(frequencies[:, None] - np.array(TONES)).min(axis=1) < 20
        kept = await device.put(np.where(near, spectrum, 0))
        filtered = await device.get(await device.fft.irfft(kept, SAMPLES))
        noise = np.std(filtered - clean)
        assert noise < 0.2, noise
        print(f"fft_1d on {device.backend}: tones at {found} Hz; noise from 1.00 to {noise:.2f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
