"""The way in for asyncio."""
