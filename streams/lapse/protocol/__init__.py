"""The wire protocol: names of headers and topics, bookmarks, commands, answers, events, and their codecs."""
