"""What the clients of stack.sh's rolling replacement count."""

import subprocess
import sys
import threading
import unittest

from stack_load import CLIENTS, Load, shown


class LoadTest(unittest.TestCase):
    def test_counts_what_became_of_every_request(self):
        asked = threading.Semaphore(0)
        answers = iter([None] * 4 + ["runahead generate: UNAVAILABLE: gone: 10.0.0.1:7000; try again in 1s"] * 2 +
                       ["runahead generate: INTERNAL: a fault"])
        lock = threading.Lock()

        def generate(_, tokens):
            self.assertEqual(tokens, 16)
            with lock:
                error = next(answers, "last")
            asked.release()
            if error == "last":
                load.stop.wait(10)
            elif error:
                raise subprocess.CalledProcessError(1, "runahead", stderr=f"a line before\n{error}\n")

        load = Load(generate, "prompt")
        with load:
            for _ in range(7 + CLIENTS):
                self.assertTrue(asked.acquire(timeout=10))
            said, lost = load.end(), load.lost()
            load.begin()
            self.assertEqual((load.end(), load.lost()), ("", []))
            load.stop.set()
        self.assertEqual(said, "4 answered; 2 UNAVAILABLE: gone; 1 INTERNAL: a fault")
        self.assertEqual(lost, ["INTERNAL: a fault"])

    def test_a_client_that_says_nothing_known_is_quoted(self):
        self.assertEqual(shown("Error: no such container\n"), "Error: no such container")
        self.assertEqual(shown("something else"), "something else")
        self.assertEqual(shown(""), "no word")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
