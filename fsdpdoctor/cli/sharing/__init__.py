"""Commands that give a run away: a page and a picture, or an archive."""
