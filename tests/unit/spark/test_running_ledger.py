import pytest

from unit.spark.bad_ledgers import CASES, Case

pytestmark = pytest.mark.feature("D8")


@pytest.mark.feature("X7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.options)
def test_options_that_do_not_go_together_are_refused_by_name(case: Case):
    assert case.told
    assert "Traceback" not in case.told
