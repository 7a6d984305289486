"""Side-by-side measurements of lapse and its peers; see README.md."""
