"""A peer of `tigon bench` that misbehaves as FAKE_PEER asks: `WHAT` or `WHAT@REQUEST`, where WHAT happens instead of an answer.

Without it, it answers every request, gives zeros as outputs and claims 0.1 ms for each run.
"""

import json
import os
import signal
import sys
import time

what, _, where = os.environ.get("FAKE_PEER", "").partition("@")


def misbehave():
    if what == "exit":
        sys.exit(7)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    answers = {"garbage": "PyTorch says hello\x1b[31m", "array": "[1, 2]", "empty": "", "other": '{"so": "what"}',
               "error": '{"error": "no\\nmemory"}', "negative": '{"seconds": -1}', "flood": "x" * 100000,
               "half": '{"seconds": 0.1'}
    print(answers[what], flush=True)


ANSWERS = {"ready": {"providers": ["fake"], "left_out": ["other: not here"]}, "peak": {"peak_bytes": 4096},
           "run": {"seconds": 1e-4}}

if where == "hello":
    misbehave()
print(json.dumps({"peer": "Fake", "version": "1.0", "threads": int(sys.argv[1])}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if os.environ.get("FAKE_PEER_LOG"):
        with open(os.environ["FAKE_PEER_LOG"], "a") as log:
            log.write(line)
    if request["do"] == where:
        misbehave()
    else:
        print(json.dumps(ANSWERS.get(request["do"], {})), flush=True)
