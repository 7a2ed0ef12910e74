"""Runners of jobs that tests look into: threads of this process that do what workers do."""

import threading
from concurrent.futures import ThreadPoolExecutor

from brt.data.stores.distributed import JobRunner, make_shard, maker_of


class Threads(JobRunner):
    """Makes shards in threads, in no order, each of them as often as is asked for.

    Args:
        workers: number of threads.
        times: an element is given out so often, as runners do that try again.
        spoil: called with each element before it is made; what it raises fails the job.

    Attributes:
        given: elements of all jobs so far.
    """

    def __init__(self, workers=3, times=1, spoil=lambda data: None):
        super().__init__("DirectRunner")
        self.workers = workers
        self.times = times
        self.spoil = spoil
        self.given = []

    def run_job(self, setup, runs):
        makers = [maker_of(setup) for _ in range(self.workers)]
        elements = [run for run in reversed(runs) for _ in range(self.times)]
        self.given += elements

        ended = threading.Event()

        def work(number, data):
            if ended.is_set():
                return
            try:
                self.spoil(data)
                make_shard(makers[number % self.workers], data)
            except BaseException:
                ended.set()
                raise

        with ThreadPoolExecutor(self.workers) as threads:
            list(threads.map(work, range(len(elements)), elements))
