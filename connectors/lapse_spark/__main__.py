"""`python -m lapse_spark <job>`: the same as `lapse spark <job>`, without the `lapse` program."""

from lapse_spark.cli import spark

if __name__ == "__main__":
    spark.main(prog_name="python -m lapse_spark")
