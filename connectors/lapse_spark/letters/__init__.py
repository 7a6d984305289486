"""Jobs on stored dead letters: the archive and redrives."""
