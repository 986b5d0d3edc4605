"""A server that speaks as much of vLLM's HTTP interface as adapter-only training uses, over a transformers model.

It loads each adapter for real, from the folder it is told, and draws from that model.
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from peft import PeftModel


class State:
    """What the server holds, and what it was asked."""

    def __init__(self, base, name, *, updating=True, most_rank=16):
        self.model = base
        self.name = name
        self.updating = updating
        self.most_rank = most_rank
        self.adapters = {}
        self.loads, self.completions = [], []
        self.busy = 0
        self.key = None
        self.hide_ids = self.blind = False
        self.lock = threading.Lock()

    def get(self, path):
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            listed = [{"id": self.name, "root": self.name}]
            return 200, {"data": listed + [{"id": name, "parent": self.name} for name in self.adapters]}
        return 404, {"detail": "Not Found"}

    def post(self, path, body):
        if path == "/v1/load_lora_adapter" and self.updating:
            return self.load(body)
        if path == "/v1/unload_lora_adapter" and self.updating:
            if self.adapters.pop(body.get("lora_name"), None) is None:
                return 404, error("The lora adapter cannot be found.")
            self.model.delete_adapter(body["lora_name"])
            return 200, "Success"
        if path == "/v1/completions":
            return self.complete(body)
        return 404, {"detail": "Not Found"}

    def load(self, body):
        if "lora_name" not in body:
            return 422, error("field required")
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            return 400, error(f"The lora adapter '{name}' has already been loaded.")
        if len(self.adapters) == 1:
            return 500, error("no room for a second adapter")
        if self.blind or not (path / "adapter_config.json").is_file():
            return 404, error(f"Loading lora {name} failed: No adapter found for {path}")
        values = json.loads((path / "adapter_config.json").read_text())
        if values["r"] > self.most_rank:
            return 500, error(f"LoRA rank {values['r']} is greater than max_lora_rank {self.most_rank}.")
        if isinstance(self.model, PeftModel):
            self.model.load_adapter(path, name)
        else:
            self.model = PeftModel.from_pretrained(self.model, path, adapter_name=name)
        self.adapters[name] = path
        self.loads.append(name)
        return 200, "Success"

    @torch.no_grad()
    def complete(self, body):
        if body["model"] not in self.adapters:
            return 404, error(f"The model `{body['model']}` does not exist.")
        self.model.set_adapter(body["model"])
        self.model.eval()
        self.completions.append(body)
        choices = []
        for index in range(body["n"]):
            ids, logps = list(body["prompt"]), []
            while len(logps) < body["max_tokens"]:
                given = torch.tensor([ids], device=self.model.device)
                logits = self.model(input_ids=given).logits[0, -1].float() / body["temperature"]
                scores = logits.log_softmax(-1)
                token = int(torch.multinomial(scores.exp(), 1))
                ids.append(token)
                logps.append(float(scores[token]))
                if token in body["stop_token_ids"]:
                    break
            made = {"index": index, "logprobs": {"token_logprobs": logps}}
            if body["return_token_ids"] and not self.hide_ids:
                made["token_ids"] = ids[len(body["prompt"]) :]
            choices.append(made)
        return 200, {"choices": choices[::-1]}


def error(message):
    return {"error": {"message": message, "type": "BadRequestError", "code": 400}}


@contextmanager
def serving(state):

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(lambda: state.get(self.path))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(lambda: state.post(self.path, body))

        def answer(self, make):
            with state.lock:
                if state.key is not None and self.headers.get("Authorization") != f"Bearer {state.key}":
                    status, found = 401, {"error": "Unauthorized"}
                elif state.busy > 0 and self.path != "/health":
                    state.busy -= 1
                    status, found = 503, {"error": "busy"}
                else:
                    status, found = make()
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
