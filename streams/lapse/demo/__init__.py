"""The demo: a year of real departures from New York through a queue and a SOW topic, compressed into minutes.

Read in this order: `flights` (what is published), `timetable` (when), `plan` (how large), the processes `publisher` and
`subscriber`, `crew` (starts and kills them), `watch` and `panel` (what is shown meanwhile), `findings` (what Spark
computes from the topics afterwards), `summary` and `page` (how that is shown), `director` (the whole run).
"""
