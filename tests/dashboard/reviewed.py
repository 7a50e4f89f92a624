"""What a demanding reader of the pages found wrong, and the test that holds each.

`python -m tests.benchmarks.reviewed COMMIT` runs those that look at a server's pages
against another commit's server, where they have to fail. The others ask code that a
commit before them does not have.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """One fault, and the tests that hold it, below tests/."""

    fault: str
    tests: tuple[str, ...]


_PAGES = "dashboard/test_browser_pages.py::test_"
_SILENCE = "dashboard/test_browser_silence.py::test_"
_CLAIMS = "dashboard/test_page_claims.py::test_"
_FIGURES = "dashboard/pages/pictures/test_figures.py::test_"
_NAMES = f"{_SILENCE}pages_say_their_names"
_TIMELINE = "dashboard/test_browser_findings.py::test_"
_VERDICT = "report/test_verdict.py::test_the_verdict_names_what_costs_most"

FAULTS: dict[str, Reviewed] = {
    "1": Reviewed(
        fault="four fifths of a step unexplained, and no finding",
        tests=(_VERDICT, "report/test_verdict.py::test_what_is_named_has_an_answer"),
    ),
    "2": Reviewed(
        fault="the headline is exposure whatever costs most", tests=(_VERDICT,)
    ),
    "3": Reviewed(
        fault="What-if draws a change slower that it says is faster",
        tests=(
            f"{_PAGES}what_if_answers_to_its_knobs",
            "dashboard/test_callbacks.py::test_a_prediction_and_its_timeline",
        ),
    ),
    "4": Reviewed(
        fault="pages go on when their server has ended",
        tests=(
            f"{_SILENCE}a_server_that_is_gone_is_said_on_every_page",
            "dashboard/test_browser_live.py::test_a_live_run_ends_under_every_page",
        ),
    ),
    "5": Reviewed(
        fault="an unreadable run's timeline is a black box",
        tests=(f"{_SILENCE}what_cannot_be_read_is_said_and_not_drawn",),
    ),
    "6": Reviewed(
        fault="waiting for a dead rank is drawn as computing",
        tests=(
            (
                "dashboard/data/test_rank_tracks.py::"
                "test_waiting_for_a_rank_that_never_came_is_waiting"
            ),
            f"{_TIMELINE}the_end_of_a_rank_is_marked",
        ),
    ),
    "7": Reviewed(
        fault="the gravest finding has no place on the timeline",
        tests=(
            (
                "dashboard/pages/test_findings.py::"
                "test_every_finding_leads_to_the_timeline"
            ),
            f"{_TIMELINE}every_finding_has_a_place",
        ),
    ),
    "8": Reviewed(
        fault="collectives outside FSDP2 are on no page",
        tests=(
            (
                "dashboard/pages/test_collectives.py::"
                "test_what_fsdp2_did_not_issue_is_listed"
            ),
        ),
    ),
    "9": Reviewed(
        fault="a fitted peak below what was reached",
        tests=(
            (
                "dashboard/pages/pictures/test_collective_figures.py::"
                "test_without_a_line_there_is_no_peak"
            ),
            (
                "dashboard/pages/pictures/test_collective_figures.py::"
                "test_the_line_is_fitted_to_the_wire"
            ),
        ),
    ),
    "10": Reviewed(
        fault="Overview and What-if contradict each other",
        tests=(
            "dashboard/test_consistency.py::test_what_if_says_what_advice_says",
            "test_advice.py::test_memory_is_what_advice_to_do_the_same_says",
            (
                "dashboard/pages/test_whatif_front.py::"
                "test_a_plan_that_loses_is_not_worth_it"
            ),
        ),
    ),
    "11": Reviewed(
        fault="a finding names another that is nowhere",
        tests=("test_gallery.py::test_a_summary_names_no_finding_that_is_not_there",),
    ),
    "12": Reviewed(
        fault="a colour means one thing in the report, another in its timeline",
        tests=("renderers/test_renderers.py::test_a_part_has_one_colour_in_every_run",),
    ),
    "13": Reviewed(
        fault="four step times that do not say what they are",
        tests=("dashboard/test_consistency.py::test_each_time_says_what_it_is",),
    ),
    "14": Reviewed(
        fault="heat maps paint noise in full colour",
        tests=(
            f"{_FIGURES}noise_has_the_colour_of_nothing",
            (
                "dashboard/pages/pictures/test_unit_bars.py::"
                "test_a_map_does_not_paint_noise"
            ),
        ),
    ),
    "15": Reviewed(
        fault="numbers of a heat map overprint each other",
        tests=(f"{_FIGURES}numbers_stand_where_there_is_room",),
    ),
    "16": Reviewed(
        fault="the timeline's view is lost on another page",
        tests=(
            f"{_PAGES}the_view_is_there_after_another_page",
            f"{_TIMELINE}an_open_finding_is_there_after_another_page",
        ),
    ),
    "17": Reviewed(
        fault="a live page forgets what was set",
        tests=(
            f"{_PAGES}a_renewed_page_keeps_what_was_set",
            "dashboard/test_browser_live.py::test_a_renewed_page_stays_where_it_was",
        ),
    ),
    "18": Reviewed(
        fault="empty axes where no memory was sampled",
        tests=(
            f"{_CLAIMS}memory_that_was_not_sampled_is_not_drawn",
            f"{_FIGURES}samples_outside_of_a_step_are_no_curve",
            f"{_TIMELINE}what_is_not_there_is_said",
        ),
    ),
    "19": Reviewed(
        fault="the search shows nothing of what it found",
        tests=("dashboard/test_browser.py::test_search_shows_what_it_found",),
    ),
    "19b": Reviewed(
        fault="the cursor's time is of the view before",
        tests=("dashboard/test_browser.py::test_the_cursors_time_is_that_of_the_view",),
    ),
    "20": Reviewed(
        fault="saved tables have no units, and words among numbers",
        tests=(f"{_PAGES}tables_sort_filter_and_save",),
    ),
    "21": Reviewed(fault="the brand leads to the page itself", tests=(_NAMES,)),
    "22": Reviewed(fault="the menu of runs stays open", tests=(_NAMES,)),
    "23": Reviewed(
        fault="a late timeline changes another page's address",
        tests=(f"{_PAGES}the_view_is_there_after_another_page",),
    ),
    "24": Reviewed(
        fault="at 200 % pages are out of reach",
        tests=(f"{_SILENCE}no_page_is_wider_than_its_window[720]",),
    ),
    "25": Reviewed(
        fault="pages are wider than a telephone",
        tests=(
            f"{_SILENCE}no_page_is_wider_than_its_window[390]",
            f"{_SILENCE}a_telephone_shows_the_timeline_and_its_findings",
        ),
    ),
    "26": Reviewed(
        fault="a printed report is cut",
        tests=(f"{_PAGES}a_report_is_printed_whole",),
    ),
    "27": Reviewed(
        fault="two runs beside each other have a scale each",
        tests=(f"{_CLAIMS}two_runs_have_one_scale",),
    ),
    "28": Reviewed(
        fault="exposed all-reduces are called reduce-scatters",
        tests=(
            (
                "detectors/test_exposed_reduce_scatter.py::"
                "test_all_reduces_are_called_all_reduces"
            ),
        ),
    ),
    "29": Reviewed(
        fault="an unreadable run is read again by every page",
        tests=(
            "dashboard/test_app.py::test_a_damaged_run_is_read_once_until_it_changes",
        ),
    ),
    "30": Reviewed(
        fault="what recording cost is said twice, and as if it were nothing",
        tests=(f"{_CLAIMS}a_dear_recording_is_an_alert_and_said_once",),
    ),
    "31": Reviewed(
        fault="heads sort by mouse alone",
        tests=(f"{_PAGES}tables_sort_filter_and_save",),
    ),
    "32": Reviewed(fault="nothing says which page one is on", tests=(_NAMES,)),
    "33": Reviewed(
        fault="six links of one name",
        tests=(f"{_CLAIMS}links_to_places_have_names_of_their_own",),
    ),
    "34": Reviewed(
        fault="the list of keys takes no focus and is not left",
        tests=(f"{_SILENCE}a_telephone_shows_the_timeline_and_its_findings",),
    ),
    "35": Reviewed(
        fault="bars speak to the mouse alone",
        tests=(f"{_CLAIMS}bars_say_what_they_show",),
    ),
    "36": Reviewed(fault="all tabs have one title", tests=(_NAMES,)),
    "37": Reviewed(
        fault="faint words in the dark",
        tests=(
            "dashboard/test_browser_axe.py::test_nothing_serious_is_found[whatif-dark]",
        ),
    ),
    "38": Reviewed(
        fault="without scripts pages are blank",
        tests=(f"{_CLAIMS}without_scripts_there_are_words",),
    ),
}
"""By number."""
