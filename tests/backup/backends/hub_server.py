"""A Hugging Face Hub on this machine, with the few requests that a place makes."""

import base64
import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hf_xet

TOKEN = "hf_" + "Ab1" * 11
WRONG_TOKEN = (
    "Invalid credentials in Authorization header"  # the Hub's own words, as its client knows
)
LARGE_BYTES = 200  # from here on a file goes to the large-file storage


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    url: str = ""
    storage_url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    large_paths: set[tuple[str, str]] = field(default_factory=set)
    public: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    tokens_at_storage: set[str | None] = field(default_factory=set)
    failing: dict[str, int] = field(default_factory=dict)  # part of a request → status
    buckets: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)  # Xet's name, size
    num_changes: Counter[str] = field(default_factory=Counter)  # of a repository: its head
    lock: threading.Lock = field(default_factory=threading.Lock)
    xet_folder: str = ""  # hf_xet itself keeps there what it uploads, a folder each time

    def head(self, repo: str) -> str:
        return f"{self.num_changes[repo]:040x}"

    def commits(self) -> int:
        return sum("/commit/" in line for line in self.requests)


class Refused(Exception):  # noqa: N818
    """An answer that is not 200."""

    def __init__(
        self, status: int, code: str = "", location: str = "", url: str = "", message: str = ""
    ) -> None:
        super().__init__(status)
        self.status, self.url = status, url
        self.headers = {"X-Error-Code": code, "X-Error-Message": message, "Location": location}


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        line = f"{self.command} {path}"
        self.hub.requests.append(line)
        try:
            for part, status in self.hub.failing.items():
                if part in line:
                    raise Refused(status)
            found = self._route(path, body)
            self._send(200, found if isinstance(found, bytes) else json.dumps(found).encode())
        except Refused as refused:
            named = {name: value for name, value in refused.headers.items() if value}
            answer = {"error": "refused", "url": refused.url}
            self._send(refused.status, json.dumps(answer).encode(), named)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(data)

    def _route(self, path: str, body: bytes) -> Any:
        if (given := self.headers.get("Authorization")) != f"Bearer {TOKEN}":
            raise Refused(401, message=WRONG_TOKEN) if given else Refused(401, "RepoNotFound")
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        if path.startswith("/api/buckets/"):
            return self._bucket(path.split("/")[3:], body)
        if path.startswith("/buckets/"):
            return self._resolve_in_bucket(path)
        if path.startswith("/api/"):
            return self._api(path.split("/")[2:], body)
        return self._resolve(path)

    def _create(self, body: dict[str, Any]) -> Any:
        kind = body.get("type") or "model"
        repo = f"{kind}s/{body['organization']}/{body['name']}"
        url = f"{self.hub.url}/{repo.removeprefix('models/')}"
        if repo in self.hub.repos:
            raise Refused(409, url=url)
        self.hub.repos[repo] = {}
        if not body.get("private") and body.get("visibility") != "private":
            self.hub.public.add(repo)
        return {"url": url}

    def _api(self, parts: list[str], body: bytes) -> Any:
        repo = "/".join(parts[:3])
        if repo not in self.hub.repos:
            raise Refused(404, "RepoNotFound")
        files = self.hub.repos[repo]
        match parts[3] if len(parts) > 3 else "":
            case "preupload":
                return {"files": [mode(file) for file in json.loads(body)["files"]]}
            case "commit":
                with self.hub.lock:
                    self._commit(repo, [json.loads(line) for line in body.splitlines() if line])
                    self.hub.num_changes[repo] += 1
                return {"commitUrl": f"{self.hub.url}/{repo}", "commitOid": "0" * 40}
            case "paths-info":
                wanted = parse_qs(body.decode())["paths"]
                return [self._entry(repo, path) for path in wanted if path in files]
            case "tree":
                return self._tree(repo, "/".join(parts[5:]))
        about = {"private": repo not in self.hub.public, "sha": self.hub.head(repo)}
        return {"id": "/".join(parts[1:3]), "siblings": [], **about}

    def _bucket(self, parts: list[str], body: bytes) -> Any:
        bucket, what = "/".join(parts[:2]), parts[2] if len(parts) > 2 else ""
        if not what and self.command == "POST":
            return self._create_bucket(bucket, json.loads(body))
        if bucket not in self.hub.buckets:
            raise Refused(404, "RepoNotFound")
        files = self.hub.buckets[bucket]
        match what:
            case "xet-write-token":
                folder = tempfile.mkdtemp(dir=self.hub.xet_folder)  # one process locks it
                exp = int(time.time()) + 3600
                return {"accessToken": "x", "exp": exp, "casUrl": f"local://{folder}"}
            case "batch":
                return self._change_bucket(files, [json.loads(line) for line in body.splitlines()])
            case "paths-info":
                wanted = json.loads(body)["paths"]
                return [bucket_entry(path, *files[path]) for path in wanted if path in files]
            case "tree":
                return bucket_tree(files, "/".join(parts[3:]))
        return {
            **{"id": bucket, "private": f"buckets/{bucket}" not in self.hub.public},
            **{"createdAt": "2026-01-01T00:00:00.000Z", "size": 0, "totalFiles": len(files)},
        }

    def _create_bucket(self, bucket: str, body: dict[str, Any]) -> Any:
        url = f"{self.hub.url}/buckets/{bucket}"
        is_new = bucket not in self.hub.buckets
        self.hub.buckets.setdefault(bucket, {})
        if is_new and not body.get("private"):
            self.hub.public.add(f"buckets/{bucket}")
        if not is_new:
            raise Refused(409, url=url)
        return {"url": url}

    def _change_bucket(
        self, files: dict[str, tuple[str, int]], lines: list[dict[str, Any]]
    ) -> dict[str, Any]:
        failed = []
        for line in lines:
            path = line["path"]
            if line["type"] == "addFile":
                files[path] = (line["xetHash"], len(from_xet(self.hub, line["xetHash"])))
            elif files.pop(path, None) is None:
                failed.append({"path": path, "error": "no such file"})
        return {"success": not failed, "failed": failed}

    def _resolve_in_bucket(self, path: str) -> bytes:
        bucket, _, file = path.removeprefix("/buckets/").partition("/resolve/")
        found = self.hub.buckets.get(bucket, {}).get(file)
        if found is None:
            raise Refused(404, "EntryNotFound")
        return self._redirect(found[0], from_xet(self.hub, found[0]))

    def _batch(self, body: dict[str, Any]) -> Any:
        objects = []
        for wanted in body["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.large:
                href = f"{self.hub.storage_url}/{wanted['oid']}"
                entry["actions"] = {"upload": {"href": href, "header": {}}}
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.hub.repos[repo])
        large = {path for of, path in self.hub.large_paths if of == repo}
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    if value.get("parentCommit") not in (None, self.hub.head(repo)):
                        raise Refused(412)
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                    large.discard(value["path"])
                case "lfsFile":
                    if value["oid"] not in self.hub.large:
                        raise Refused(400)
                    files[value["path"]] = self.hub.large[value["oid"]]
                    large.add(value["path"])
                case "deletedFile":
                    if value["path"] not in files:
                        raise Refused(400)
                    del files[value["path"]]
        self.hub.repos[repo] = files
        others = {(of, path) for of, path in self.hub.large_paths if of != repo}
        self.hub.large_paths = others | {(repo, path) for path in large & files.keys()}

    def _entry(self, repo: str, path: str) -> dict[str, Any]:
        data = self.hub.repos[repo][path]
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": "1" * 40}
        if (repo, path) in self.hub.large_paths:
            oid = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 134}
        return entry

    def _tree(self, repo: str, folder: str) -> list[dict[str, Any]]:
        start = f"{folder}/" if folder else ""
        inside = [p.removeprefix(start) for p in self.hub.repos[repo] if p.startswith(start)]
        if not inside and folder:
            raise Refused(404, "EntryNotFound")
        folders = {path.partition("/")[0] for path in inside if "/" in path}
        entries = [self._entry(repo, start + path) for path in inside if "/" not in path]
        tree = [{"type": "directory", "path": start + name, "oid": "2" * 40} for name in folders]
        return tree + entries

    def _resolve(self, path: str) -> bytes:
        repo, _, file = path.strip("/").partition("/resolve/main/")
        repo = repo if repo.startswith("datasets/") else f"models/{repo}"
        data = self.hub.repos.get(repo, {}).get(file)
        if data is None:
            raise Refused(404, "EntryNotFound")
        if (repo, file) in self.hub.large_paths:
            return self._redirect(hashlib.sha256(data).hexdigest(), data)
        return data

    def _redirect(self, oid: str, data: bytes) -> bytes:
        self.hub.large.setdefault(oid, data)
        raise Refused(302, location=f"{self.hub.storage_url}/{oid}")


def mode(file: dict[str, Any]) -> dict[str, Any]:
    how = "lfs" if file["size"] >= LARGE_BYTES else "regular"
    return {"path": file["path"], "uploadMode": how, "shouldIgnore": False}


def bucket_entry(path: str, name: str, size: int) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": size, "xetHash": name}


def bucket_tree(files: dict[str, tuple[str, int]], prefix: str) -> list[dict[str, Any]]:
    """As the Hub: letters are compared, and what is below a folder is that folder."""
    skipped = len(prefix) + 1 if prefix else 0
    tree: dict[str, dict[str, Any]] = {}
    for path, (name, size) in files.items():
        if path.startswith(prefix):
            end = path.find("/", skipped)
            at = path if end < 0 else path[:end]
            entry = bucket_entry(path, name, size)
            tree[at] = entry if end < 0 else {"type": "directory", "path": at}
    return list(tree.values())


def from_xet(hub: Hub, name: str) -> bytes:
    """What hf_xet has uploaded under a name."""
    if name not in hub.large:
        folders = sorted(Path(hub.xet_folder).iterdir(), key=lambda path: -path.stat().st_mtime_ns)
        found = (data for folder in folders if (data := downloaded(folder, name)) is not None)
        hub.large[name] = next(found)
    return hub.large[name]


@functools.cache
def xet_session() -> Any:
    return hf_xet.XetSession()


def downloaded(folder: Path, name: str) -> bytes | None:
    """From a copy: the process that has uploaded may hold the lock of the folder."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, f"{place}/copy")
        target = Path(place, "file")
        try:
            with xet_session().new_file_download_group(endpoint=f"local://{place}/copy") as group:
                group.start_download_file(hf_xet.XetFileInfo(name), str(target))
        except RuntimeError:  # it has none of that name
            return None
        return target.read_bytes()


class Storage(Handler):
    """Where the large files lie: another server, which knows no tokens."""

    def _route(self, path: str, body: bytes) -> Any:
        self.hub.tokens_at_storage.add(self.headers.get("Authorization"))
        oid = path.strip("/")
        if self.command == "PUT":
            self.hub.large[oid] = body
        return self.hub.large[oid]


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    folder = tempfile.TemporaryDirectory()
    hub = Hub(xet_folder=folder.name)
    servers = []
    for name in ("url", "storage_url"):
        base = Handler if name == "url" else Storage
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (base,), {"hub": hub}))
        setattr(hub, name, f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
    try:
        yield hub
    finally:
        for server, thread in servers:
            server.shutdown()
            thread.join()
            server.server_close()
        folder.cleanup()
