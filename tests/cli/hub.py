"""A hub on this machine: the few requests of a push, answered over HTTP, and the files of every commit kept."""

import base64
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Hub:
    """What the hub was sent; it refuses repositories with a status, is down, or goes down after so many commits."""

    address: str = ""
    created: list = field(default_factory=list)
    files: dict = field(default_factory=dict)
    messages: list = field(default_factory=list)
    tokens: set = field(default_factory=set)
    refuse: int = 0
    down: bool = False
    down_after: int | None = None


@contextmanager
def running_hub():
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words):
            pass

        def answer(self, content, status=200):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self):
            if hub.down:
                self.close_connection = True
            elif self.path.startswith("/api/whoami"):
                self.answer({"name": "me", "type": "user", "auth": {"accessToken": {"role": "write"}}, "orgs": []})
            elif self.path.startswith("/api/models/me/") and hub.created and not hub.refuse:
                self.answer({"id": "me/sums", "modelId": "me/sums", "sha": "0" * 40, "siblings": [], "tags": []})
            else:
                self.answer({"error": "Repository not found"}, 404)

        do_HEAD = do_GET

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.tokens.add(self.headers.get("Authorization"))
            if hub.down or (hub.down_after is not None and hub.created and len(hub.messages) >= hub.down_after):
                self.close_connection = True
                return
            if self.path == "/api/repos/create":
                hub.created.append(json.loads(body))
                if hub.refuse:
                    self.answer({"error": "no such user"}, hub.refuse)
                else:
                    self.answer({"url": f"{hub.address}/me/sums", "id": "me/sums"})
            elif self.path.startswith("/api/validate-yaml"):
                self.answer({"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                sent = [each["path"] for each in json.loads(body)["files"]]
                kinds = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in sent]
                self.answer({"files": kinds})
            elif "/commit/" in self.path:
                for line in body.decode().splitlines():
                    item = json.loads(line)
                    if item["key"] == "header":
                        hub.messages.append(item["value"]["summary"])
                    elif item["key"] == "file":
                        hub.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
                self.answer({"commitUrl": f"{hub.address}/me/sums/commit/{'1' * 40}", "commitOid": "1" * 40})
            else:
                self.answer({"error": f"unexpected {self.path}"}, 400)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
