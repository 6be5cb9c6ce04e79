"""Several devices: opened together, how they are linked, and where work goes."""
