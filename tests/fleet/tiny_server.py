"""A server that speaks as much of OpenAI's API as a fleet needs, and starts in a fraction of a second.

A prompt "wait" is answered after POST /release. The model tiny/broken ends it at once, tiny/refused as
settings do that cannot work.
"""

from __future__ import annotations

import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

RELEASED = Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            return self._answer(b'vllm:num_requests_waiting{model_name="tiny"} 7.0\n', "text/plain")
        self._answer(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/release":
            RELEASED.set()
        elif body.get("prompt") == "wait":
            RELEASED.wait(60)
        self._answer(
            json.dumps({"choices": [{"index": 0, "text": "done", "finish_reason": "stop"}]}).encode()
        )

    def _answer(self, content: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    if "tiny/refused" in sys.argv:
        print("loading\nerror: max_num_seqs must be at least 1, got 0", file=sys.stderr)
        sys.exit(2)
    if "tiny/broken" in sys.argv:
        sys.exit("this server is broken")
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    server.daemon_threads = False
    signal.signal(signal.SIGTERM, lambda *_: Thread(target=server.shutdown).start())
    server.serve_forever()
    server.server_close()
