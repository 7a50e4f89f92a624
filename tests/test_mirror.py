"""Every module has its test, in the place where one looks for it."""

from __future__ import annotations

from tests import mirror


def test_every_module_has_a_test() -> None:
    """A file of its own, or a place in the list of those that have none."""
    assert [module for module, test in mirror.tests_of().items() if test is None] == []


def test_the_list_is_of_modules_without_a_file() -> None:
    """What it names is there, and has no file of its own by now."""
    listed = [module for each in mirror.COVERED_BY.values() for module in each]
    own = {mirror.own_test(module) for module in listed}

    assert sorted(listed) == sorted(set(listed))
    assert [module for module in listed if module not in mirror.modules()] == []
    assert [name for name in sorted(own) if (mirror.TESTS / name).exists()] == []
    missing = [
        test for test in mirror.COVERED_BY if not (mirror.TESTS / test).is_file()
    ]
    assert missing == []


def test_the_page_is_not_stale() -> None:
    """Make it anew with `python -m tests.mirror > tests/README.md`."""
    assert mirror.README.read_text() == mirror.page()
