"""What a value holds where its source did not say it."""

import numpy as np

UNKNOWN = -1
"""What an id or a size holds where the source did not say."""

NO_TIME = np.iinfo(np.int64).min
"""What a time holds where the source did not say. Times may be negative."""
