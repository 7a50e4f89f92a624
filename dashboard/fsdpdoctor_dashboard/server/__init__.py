"""HTTP: what may be asked, and the answers."""
