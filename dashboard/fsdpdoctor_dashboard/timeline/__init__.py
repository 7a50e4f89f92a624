"""The timeline: a canvas component in JavaScript, and what hands it to a page."""
