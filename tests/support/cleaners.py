"""Cleaners of tests: the port `storage.ports.Cleaner` in this process, over the real run."""

from functools import partial

import trio

from tpc_broker.cleaner.cleaning_run import SourceChangedError, clean
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.storage.ports import CleaningFailedError, JobVoidError


class ThreadCleaner:
    """Cleans in a thread. `jobs`: all that it was given; `failures`: what the next ones end with, before they begin."""

    def __init__(self):
        self.jobs, self.reports, self.failures = [], [], []
        self.before_take = None
        """Awaited with each group before it is given."""
        self.is_held = False
        """Ready, for a job that was not given yet."""

    async def ready(self):
        await trio.lowlevel.checkpoint()
        self.is_held = True

    def let_go(self):
        self.is_held = False

    async def clean(self, job, take):
        self.is_held = False
        self.jobs.append(job)
        if self.failures:
            raise self.failures.pop(0)

        async def give(group):
            if self.before_take is not None:
                await self.before_take(group)
            await take(group)

        run = partial(clean, job, lambda group: trio.from_thread.run(give, group), lambda _bytes: None, lambda: False)
        try:
            report = await trio.to_thread.run_sync(run)
        except SourceChangedError as error:
            raise JobVoidError(str(error)) from error
        except BatchDamageError as error:
            raise CleaningFailedError(str(error)) from error
        self.reports.append(report)
        return report
