"""Calls of the `tokenizers` library, and what becomes of standard error meanwhile."""

from __future__ import annotations

import os
import threading
import time

from partita.checkpoints.tokenizer_library import attempt_quietly


def test_two_threads_leave_standard_error_as_it_was():
    """The first to begin would end first, and the second would then restore the first one's redirection."""
    before, begun = os.fstat(2), threading.Event()

    def first() -> None:
        begun.set()
        time.sleep(0.3)

    threads = [threading.Thread(target=attempt_quietly, args=(first,))]
    threads[0].start()
    begun.wait()
    threads.append(threading.Thread(target=attempt_quietly, args=(threads[0].join,)))
    threads[1].start()
    for thread in threads:
        thread.join()
    assert os.path.samestat(os.fstat(2), before)
