"""A rank that joins no other: it answers, waits or ends, as each command says."""

import os
import time


class Commands:
    versions = "first"

    def __init__(self, rank):
        self.rank = rank

    def act(self, **what):
        act = what.get(str(self.rank), "answer")
        if act == "wait":
            time.sleep(900)
        if act != "answer":
            os._exit(int(act))
        return self.rank


def join(setup, say):
    return Commands(setup["rank"])
