"""A rank that joins no other: it answers, waits or ends, as each command says."""

import json
import sys
import time

for line in sys.stdin:
    what = json.loads(line).get(str(json.loads(sys.argv[1])["rank"]), "answer")
    if what == "answer":
        print("{}", flush=True)
    elif what == "wait":
        time.sleep(900)
        sys.exit("nobody ended this rank")
    else:
        sys.exit(int(what))
