"""Data on the device: methods, transfers, page-locked and managed memory."""
