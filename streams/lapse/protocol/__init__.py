"""What is on the wire: header and topic names, bookmarks, commands, answers, events, and their codecs."""
