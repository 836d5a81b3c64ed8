"""The metrics of several workers, merged into those of one gateway."""

from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.metrics.registry import METRICS
from gateway.admin.metrics.row import Value
from gateway.workers.families import MERGE, WORKER_METRICS, Totals, merge_families
from gateway.workers.supervised_worker import SupervisedWorker


def page(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def values(families: list[Metric]) -> dict[str, float]:
    """Return the samples by name and labels."""
    return {
        sample.name + (str(dict(sorted(sample.labels.items()))) if sample.labels else ""): sample.value
        for family in families
        for sample in family.samples
    }


ONE = """\
# HELP weir_requests_total Requests by API.
# TYPE weir_requests_total counter
weir_requests_total{api="Produce"} 10
weir_requests_total{api="Fetch"} 1
# TYPE weir_connections gauge
weir_connections 3
# TYPE weir_quota_limit gauge
weir_quota_limit{user="alice",kind="produce"} 100
# TYPE weir_quota_tokens gauge
weir_quota_tokens{user="alice"} 50
# TYPE weir_config_reloads_total counter
weir_config_reloads_total{result="success"} 2
# TYPE weir_request_seconds histogram
weir_request_seconds_bucket{api="Produce",le="0.1"} 1
weir_request_seconds_bucket{api="Produce",le="+Inf"} 3
weir_request_seconds_count{api="Produce"} 3
weir_request_seconds_sum{api="Produce"} 2.5
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1000
"""
OTHER = """\
# TYPE weir_requests_total counter
weir_requests_total{api="Produce"} 5
weir_requests_total{api="Metadata"} 7
# TYPE weir_connections gauge
weir_connections 4
# TYPE weir_quota_limit gauge
weir_quota_limit{user="alice",kind="produce"} 100
# TYPE weir_quota_tokens gauge
weir_quota_tokens{user="alice"} -20
# TYPE weir_config_reloads_total counter
weir_config_reloads_total{result="success"} 2
# TYPE weir_request_seconds histogram
weir_request_seconds_bucket{api="Produce",le="0.1"} 2
weir_request_seconds_bucket{api="Produce",le="+Inf"} 2
weir_request_seconds_count{api="Produce"} 2
weir_request_seconds_sum{api="Produce"} 0.125
# TYPE process_start_time_seconds gauge
process_start_time_seconds 900
"""
RELOADS = """\
# TYPE weir_config_reloads_total counter
weir_config_reloads_total{{result="success"}} {}
"""
PRODUCE = '# TYPE weir_requests_total counter\nweir_requests_total{{api="Produce"}} {}\n'
OF_PROCESS = """\
# TYPE weir_connections gauge
weir_connections {0}
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total {0}
"""
TOGETHER = {
    "weir_requests_total{'api': 'Produce'}": 15,
    "weir_requests_total{'api': 'Fetch'}": 1,
    "weir_requests_total{'api': 'Metadata'}": 7,
    "weir_connections": 7,
    "weir_quota_limit{'kind': 'produce', 'user': 'alice'}": 100,
    "weir_quota_tokens{'user': 'alice'}": -20,
    "weir_config_reloads_total{'result': 'success'}": 2,
    "weir_request_seconds_bucket{'api': 'Produce', 'le': '0.1'}": 3,
    "weir_request_seconds_bucket{'api': 'Produce', 'le': '+Inf'}": 5,
    "weir_request_seconds_count{'api': 'Produce'}": 5,
    "weir_request_seconds_sum{'api': 'Produce'}": 2.625,
    "process_start_time_seconds": 900,
}


def test_two_pages_are_merged() -> None:
    assert values(merge_families([page(ONE), page(OTHER)])) == TOGETHER


def test_order_of_pages_does_not_matter() -> None:
    assert values(merge_families([page(OTHER), page(ONE)])) == TOGETHER


def test_open_files_are_those_of_the_fullest_process() -> None:
    file = "# TYPE process_open_fds gauge\nprocess_open_fds {}\n# TYPE process_max_fds gauge\nprocess_max_fds {}\n"
    supervisor, full, other = (page(file.format(*files)) for files in ((20, 400), (390, 400), (300, 500)))
    assert values(merge_families([supervisor, full, other])) == {"process_open_fds": 390, "process_max_fds": 400}


def test_names_types_and_help_stay() -> None:
    (requests, *_) = merge_families([page(ONE), page(OTHER)])
    assert (requests.name, requests.type, requests.documentation) == ("weir_requests", "counter", "Requests by API.")


def test_no_pages_give_no_families() -> None:
    assert merge_families([]) == []


def test_each_metric_has_a_merge_rule() -> None:
    assert {row.name.removesuffix("_total") for row in METRICS if isinstance(row, Value)} <= MERGE.keys()


class TestWorkerMetrics:
    """Metrics with the label `worker`."""

    def by_worker(self, answered: dict[int, list[Metric]]) -> dict[str, float]:
        workers = [SupervisedWorker(number, (), Path("socket"), int) for number in (0, 1)]
        for worker in workers:
            worker.process = worker.number + 1
        return values([row.family(workers, answered) for row in WORKER_METRICS])

    def test_silent_worker_has_no_figures_of_its_process(self) -> None:
        both = self.by_worker({1: page(OF_PROCESS.format(7)), 2: page(OF_PROCESS.format(8))})
        one = self.by_worker({1: page(OF_PROCESS.format(9))})
        for name in ("weir_worker_cpu_seconds_total", "weir_worker_connections"):
            first, second = (f"{name}{{'worker': '{worker}'}}" for worker in "01")
            assert (both[first], both[second], one[first]) == (7, 8, 9)
            assert second not in one

    def test_silent_worker_is_not_up(self) -> None:
        up = {name: value for name, value in self.by_worker({1: []}).items() if name.startswith("weir_worker_up")}
        assert up == {"weir_worker_up{'worker': '0'}": 1, "weir_worker_up{'worker': '1'}": 0}


class TestTotals:
    """Counters of workers that have ended, or have forgotten a client."""

    def test_counters_never_fall_when_a_worker_is_replaced(self) -> None:
        totals = Totals()
        totals.seen(1, page(ONE))
        totals.seen(2, page(OTHER))
        assert values(totals.merged([1, 2], [1, 2])) == TOGETHER
        totals.seen(3, page(PRODUCE.format(1)))
        after = values(totals.merged([2, 3], [2, 3]))
        assert after["weir_requests_total{'api': 'Produce'}"] == 16
        assert after["weir_requests_total{'api': 'Fetch'}"] == 1
        assert after["weir_request_seconds_count{'api': 'Produce'}"] == 5

    def test_gauges_are_those_of_running_workers(self) -> None:
        totals = Totals()
        totals.seen(1, page(ONE))
        totals.seen(2, page(OTHER))
        after = values(totals.merged([2], [2]))
        assert after["weir_connections"] == 4
        assert after["process_start_time_seconds"] == 900
        assert after["weir_config_reloads_total{'result': 'success'}"] == 2

    def test_counters_with_one_value_for_all_workers_never_fall(self) -> None:
        name = "weir_config_reloads_total{'result': 'success'}"
        totals = Totals()
        totals.seen(1, page(ONE))
        assert values(totals.merged([1, 2], []))[name] == 2, "a silent worker"
        totals.seen(2, page(PRODUCE.format(1)))
        assert values(totals.merged([2], [2]))[name] == 2, "an ended worker"

    def test_new_workers_go_on_from_the_count_of_the_others(self) -> None:
        totals = Totals()
        totals.seen(1, page(RELOADS.format(5)))
        totals.seen(2, page(RELOADS.format(5)))
        totals.merged([1, 2], [1, 2])
        totals.seen(3, page(RELOADS.format(0)))
        totals.merged([2, 3], [2, 3])
        totals.seen(4, page(RELOADS.format(0)))
        totals.merged([3, 4], [3, 4])
        for process in (3, 4):
            totals.seen(process, page(RELOADS.format(1)))
        assert values(totals.merged([3, 4], [3, 4])) == {"weir_config_reloads_total{'result': 'success'}": 6}

    def test_reload_during_the_first_look_counts_once(self) -> None:
        totals = Totals()
        totals.seen(1, page(RELOADS.format(1)))
        totals.seen(2, page(RELOADS.format(0)))
        totals.merged([1, 2], [1, 2])
        for process in (1, 2):
            totals.seen(process, page(RELOADS.format(1)))
        assert values(totals.merged([1, 2], [1, 2])) == {"weir_config_reloads_total{'result': 'success'}": 1}

    def test_silent_worker_keeps_its_counters(self) -> None:
        totals = Totals()
        totals.seen(1, page(ONE))
        totals.seen(2, page(OTHER))
        after = values(totals.merged([1, 2], [2]))
        assert after["weir_requests_total{'api': 'Produce'}"] == 15
        assert after["weir_connections"] == 4

    def test_counters_of_ended_workers_add_up(self) -> None:
        totals = Totals()
        for process in range(5):
            totals.seen(process, page(OTHER))
            totals.merged([process], [process])
        assert values(totals.merged([], []))["weir_requests_total{'api': 'Produce'}"] == 25

    def test_counter_stays_when_one_of_two_workers_forgets_it(self) -> None:
        totals = Totals()
        totals.seen(1, page(ONE))
        totals.seen(2, page(OTHER))
        totals.seen(1, [])
        after = values(totals.merged([1, 2], [1, 2]))
        assert after["weir_requests_total{'api': 'Produce'}"] == 15
        assert after["weir_request_seconds_count{'api': 'Produce'}"] == 5

    def test_counter_that_begins_again_adds_up(self) -> None:
        totals = Totals()
        totals.seen(2, page(OTHER))
        for count in (10, 0, 3, 4):
            totals.seen(1, page(PRODUCE.format(count)))
        assert values(totals.merged([1, 2], [1, 2]))["weir_requests_total{'api': 'Produce'}"] == 5 + 10 + 4

    def test_counter_that_all_workers_forget_ends_and_begins_at_0(self) -> None:
        totals = Totals()
        for process in (1, 2):
            totals.seen(process, page(PRODUCE.format(10)))
        for process in (1, 2):
            totals.seen(process, [])
        assert values(totals.merged([1, 2], [1, 2])) == {}
        totals.seen(1, page(PRODUCE.format(2)))
        assert values(totals.merged([1, 2], [1, 2])) == {"weir_requests_total{'api': 'Produce'}": 2}

    def test_forgotten_counter_stays_beside_that_of_an_ended_worker(self) -> None:
        totals = Totals()
        totals.seen(1, page(PRODUCE.format(10)))
        totals.seen(2, page(PRODUCE.format(4)))
        totals.merged([2], [2])
        totals.seen(2, [])
        assert values(totals.merged([2], [2])) == {"weir_requests_total{'api': 'Produce'}": 14}
