"""Access to devices from asyncio."""
