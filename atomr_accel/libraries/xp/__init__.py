"""``device.xp``: the names of the Array API standard."""
