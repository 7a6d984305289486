"""Records: how the latest record of every key is stored, and in which order work goes through all of them."""
