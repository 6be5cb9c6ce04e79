"""A live page about a system of actors and its devices, for a browser.

``async with open_dashboard(system) as page:`` serves it at ``page.url``, on this machine alone, and
only to requests with its token. `running` lists the programs of this user that have one open.
"""

from ._open import Dashboard, open_dashboard
from ._running import RunningDashboard, running

__all__ = ["Dashboard", "RunningDashboard", "open_dashboard", "running"]
