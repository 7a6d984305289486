"""The demo: a year of real departures from New York through a queue and a SOW topic, compressed into minutes.

Read in this order: `flights` (what is published), `timetable` (when), `plan` (how large), the processes `publisher`
and `subscriber`, `crew` (who keeps them, and kills them), `watch` and `panel` (what is seen meanwhile), `findings`
(what Spark reckons from the topics afterwards), `summary` and `page` (how it is shown), `director` (the whole).
"""
