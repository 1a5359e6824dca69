"""The protocol's source files: sound in themselves, true to each other, and what is made from them is up to date."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.schema import PROTOCOL_DIR, Conversation, Direction, SchemaError, Validator, protocol_module

# The whole of protocol 1. A method that is added or taken away is a change of the promise made to users.
METHODS = {
    "account.set", "daemon.health", "daemon.ping", "daemon.status", "exec.ack", "exec.attach", "exec.cancel", "exec.exit", "exec.list",
    "exec.output", "exec.start", "exec.stdin", "fs.delete", "fs.get", "fs.progress", "fs.pull", "fs.push", "fs.put", "hello",
    "orphan.adopt", "orphan.inspect", "orphan.terminate", "plan.list",
    "rpc.discover", "sandbox.ensure", "sandbox.get", "sandbox.list",
    "sandbox.forget", "sandbox.progress", "sandbox.release", "sandbox.start", "sandbox.stop", "sandbox.terminate",
}  # fmt: skip

# Names and codes are both on the wire: clients compare the names, and logs are searched for the codes.
ERRORS = {
    "parse_error": -32700, "invalid_request": -32600, "method_not_found": -32601, "invalid_params": -32602,
    "internal_error": -32603,
    "hello_required": 1001, "incompatible_protocol": 1002, "line_too_long": 1003, "shutting_down": 1004,
    "too_many_requests": 1005, "cancelled": 1006,
    "not_configured": 2001, "unauthorized": 2002, "account_mismatch": 2003, "cloud_unreachable": 2004,
    "cloud_error": 2005, "cap_reached": 2006, "rate_limited": 2007, "no_capacity": 2008, "budget_reached": 2009,
    "sandbox_not_found": 3001, "sandbox_gone": 3002, "sandbox_busy": 3003, "boot_failed": 3004, "unknown_plan": 3005,
    "generation_changed": 3006,
    "exec_not_found": 4001, "exec_id_in_use": 4002, "argument_too_long": 4003, "outcome_unknown": 4004,
    "start_timeout": 4005,
    "path_outside_workspace": 5001, "too_large": 5002, "file_not_found": 5003, "host_file": 5004, "no_space": 5005,
    "sync_failed": 5006, "in_the_way": 5007,
}  # fmt: skip

# Sending the same again after one of these could do something twice, or is of no use.
NEVER_RETRYABLE = {"outcome_unknown", "internal_error", "invalid_params", "unauthorized", "account_mismatch"}

METHOD_FILES = sorted((PROTOCOL_DIR / "methods").glob("*.json"))
SOURCES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in METHOD_FILES}
EXAMPLES = [
    pytest.param(name, example, id=f"{name}-{number}")
    for name, source in SOURCES.items()
    for number, example in enumerate(source["examples"], start=1)
]


@pytest.fixture(scope="module")
def validator() -> Validator:
    return Validator()


def generate(*arguments: str, script: Path = PROTOCOL_DIR / "generate.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every schema of an object with named fields, however deep."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" and "properties" in schema else []
    return own + [found for value in schema.values() for found in objects(value)]


# --- the files ---


def test_every_method_of_the_protocol_has_a_file() -> None:
    assert set(SOURCES) == METHODS


def test_error_names_and_codes_are_those_promised(validator: Validator) -> None:
    assert {error.name: error.code for error in validator.protocol.errors} == ERRORS


def test_no_error_that_may_hide_an_effect_is_retryable(validator: Validator) -> None:
    assert not [name for name in NEVER_RETRYABLE if validator.errors[name].retryable]


def test_every_error_says_what_it_means_and_what_to_do(validator: Validator) -> None:
    for error in validator.protocol.errors:
        assert error.summary.endswith("."), error.name
        assert len(error.hint) >= 20 and not error.hint.endswith("."), error.name


def test_every_error_is_used(validator: Validator) -> None:
    used = {name for source in SOURCES.values() for name in source["errors"]} | validator.common_errors
    assert set(validator.errors) == used


@pytest.mark.parametrize("name", SOURCES)
def test_schemas_are_valid_and_described(name: str, validator: Validator) -> None:
    source = SOURCES[name]
    for part in ("params", "result"):
        if part not in source:
            continue
        jsonschema.Draft202012Validator.check_schema(source[part])
        for schema in objects(source[part]):
            for field, field_schema in schema["properties"].items():
                assert "description" in field_schema or "$ref" in field_schema, f"{name} {part} {field}"
            assert set(schema.get("required", ())) <= set(schema["properties"])
    assert source["summary"].endswith((".", "?")) and source["description"].endswith((".", "`"))
    assert source["examples"]


def test_shared_types_are_valid_described_and_used(validator: Validator) -> None:
    sources = protocol_module("sources")
    types = validator.protocol.types
    used = {sources.type_name(ref) for ref in sources.references([*SOURCES.values(), *types.values()])}
    for name, schema in types.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "description" in schema, name
        for found in objects(schema):
            for field_name, field in found["properties"].items():
                assert "description" in field or "$ref" in field or field_name in ("data", "b64"), (name, field_name)
    assert set(types) - used == {"error"}  # the shape of every error answer, which no method names


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source["direction"][0] == "c"])
def test_params_refuse_unknown_fields_except_in_hello(name: str, validator: Validator) -> None:
    params = copy.deepcopy(SOURCES[name]["examples"][0]["params"])
    validator.request(name, params)
    params["no_such_field"] = 1
    if name == "hello":
        validator.request(name, params)
    else:
        with pytest.raises(SchemaError, match="no_such_field"):
            validator.request(name, params)


def test_unknown_fields_inside_a_key_are_refused(validator: Validator) -> None:
    with pytest.raises(SchemaError, match="host"):
        validator.request("sandbox.get", {"key": {"profile": "p", "task": "t", "host": "h"}})


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_examples_fit_their_schemas(name: str, example: dict[str, Any], validator: Validator) -> None:
    source = SOURCES[name]
    if source["direction"] == "daemon-to-client":
        validator.notification(name, example["params"])
        return
    validator.request(name, example["params"])
    if "result" in example:
        validator.result(name, example["result"])
    if "error" in example:
        validator.error(protocol_module("sources").error_object(validator.protocol, example["error"]), name)


def test_conversation_in_the_preface_is_right(validator: Validator) -> None:
    conversation = Conversation(validator)
    text = (PROTOCOL_DIR / "preface.md").read_text(encoding="utf-8")
    lines: list[tuple[str, str]] = re.findall(r"^(-->|<--) (.*)$", text, flags=re.MULTILINE)
    assert len(lines) >= 8
    for arrow, line in lines:
        if arrow == "-->":
            conversation.sent(json.loads(line))
        else:
            conversation.received(line.encode() + b"\n")
    assert not conversation.pending


# --- rules between fields ---


def exec_start(**changes: Any) -> dict[str, Any]:
    params = {"exec_id": "e1", "key": {"profile": "p", "task": "t"}, "argv": ["true"]} | changes
    return {name: value for name, value in params.items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": None},
        {"argv": []},
        {"script": "true"},
        {"login": True},
        {"exec_id": "-e"},
        {"exec_id": "e" * 129},
        {"exec_id": "e\n"},
        {"exec_id": ""},
        {"timeout_s": 0},
        {"window": 4095},
        {"window": 16777217},
        {"window": 4096.5},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A": 1}},
        {"stdin": {"b64": "a"}},
        {"stdin": {"b64": "YQ==", "x": 1}},
        {"plan": ""},
        {"key": {"profile": "", "task": "t"}},
        {"key": {"profile": "p" * 1025, "task": "t"}},
    ],
    ids=str,
)
def test_exec_start_refuses(changes: dict[str, Any], validator: Validator) -> None:
    validator.request("exec.start", exec_start())
    with pytest.raises(SchemaError):
        validator.request("exec.start", exec_start(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": None, "script": ""},
        {"argv": None, "script": "true", "login": True},
        {"exec_id": "e" * 128},
        {"timeout_s": 0.001},
        {"window": 4096},
        {"stdin": ""},
        {"stdin": {"b64": ""}},
        {"argv": [{"b64": "/w=="}, ""]},
        {"env": {"A": {"b64": "/w=="}}},
    ],
    ids=str,
)
def test_exec_start_accepts(changes: dict[str, Any], validator: Validator) -> None:
    validator.request("exec.start", exec_start(**changes))


FAILURE = {"code": 2006, "name": "cap_reached", "retryable": True, "hint": "wait"}


def exec_exit(**changes: Any) -> dict[str, Any]:
    if changes.get("reason") == "failed":
        changes = {"started": "no"} | changes
    params = {"exec_id": "e1", "returncode": 0, "reason": "exited", "started": "yes", "recreated": False}
    return params | {"generation": 1, "output_bytes": 0, "dropped_bytes": 0} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"returncode": None},
        {"started": "no"},
        {"reason": "timed_out", "returncode": 0},
        {"reason": "cancelled", "returncode": None},
        {"reason": "lost", "returncode": 0, "message": "m"},
        {"reason": "lost", "returncode": None},
        {"reason": "lost", "returncode": None, "message": "m", "started": "no"},
        {"reason": "failed", "returncode": 1, "message": "m", "error": FAILURE},
        {"reason": "failed", "returncode": None, "message": "m"},
        {"reason": "failed", "returncode": None, "error": FAILURE},
        {"reason": "failed", "returncode": None, "message": "m", "error": FAILURE | {"code": 2007}},
        {"reason": "failed", "returncode": None, "message": "m", "error": FAILURE | {"name": "no_such_error"}},
        {"reason": "failed", "returncode": None, "message": "m", "error": FAILURE | {"retryable": False}},
        {"reason": "failed", "returncode": None, "message": "m", "error": FAILURE, "started": "unknown"},
        {"surprise": 1},
    ],
    ids=str,
)
def test_exec_exit_cannot_say(changes: dict[str, Any], validator: Validator) -> None:
    validator.notification("exec.exit", exec_exit())
    validator.notification(
        "exec.exit", exec_exit(reason="failed", returncode=None, message="m", error=FAILURE)
    )
    with pytest.raises(SchemaError):
        validator.notification("exec.exit", exec_exit(**changes))


@pytest.mark.parametrize("params", [{}, {"key": {"profile": "p", "task": "t"}, "id": "sb_1"}], ids=["neither", "both"])
@pytest.mark.parametrize("name", ["sandbox.get", "sandbox.start", "sandbox.stop", "sandbox.terminate"])
def test_a_sandbox_is_chosen_by_key_or_id(name: str, params: dict[str, Any], validator: Validator) -> None:
    with pytest.raises(SchemaError):
        validator.request(name, params)


# --- the validator itself ---

PING = {"jsonrpc": "2.0", "id": 1, "method": "daemon.ping", "params": {}}


def error_answer(name: str, validator: Validator, **changes: Any) -> dict[str, Any]:
    error = protocol_module("sources").error_object(validator.protocol, {"name": name, "message": "m"})
    return {"jsonrpc": "2.0", "id": 1, "error": error} | changes


@pytest.mark.parametrize(
    ("direction", "obj"),
    [
        ("client-to-daemon", [PING]),
        ("client-to-daemon", PING | {"jsonrpc": "1.0"}),
        ("client-to-daemon", PING | {"id": None}),
        ("client-to-daemon", PING | {"id": True}),
        ("client-to-daemon", PING | {"id": 7}),
        ("client-to-daemon", PING | {"params": []}),
        ("client-to-daemon", PING | {"extra": 1}),
        ("client-to-daemon", PING | {"method": "no.such"}),
        ("client-to-daemon", PING | {"method": "exec.output"}),
        ("daemon-to-client", PING),
        ("daemon-to-client", {"jsonrpc": "2.0", "id": 8, "result": {}}),
        ("daemon-to-client", {"jsonrpc": "2.0", "id": 7, "result": {"surprise": 1}}),
        ("daemon-to-client", {"jsonrpc": "2.0", "id": None, "result": {}}),
        ("daemon-to-client", {"jsonrpc": "2.0", "id": 7}),
        ("daemon-to-client", {"jsonrpc": "2.0", "id": 7, "error": {"code": -32600, "message": "no data"}}),
    ],
    ids=str,
)
def test_messages_that_are_refused(direction: Direction, obj: Any, validator: Validator) -> None:
    with pytest.raises(SchemaError):
        validator.message(direction, obj, {7: "daemon.ping"})


def test_answers_are_matched_with_requests(validator: Validator) -> None:
    pending: dict[str | int, str | None] = {}
    validator.message("client-to-daemon", PING, pending)
    assert pending == {1: "daemon.ping"}
    validator.message("daemon-to-client", {"jsonrpc": "2.0", "id": 1, "result": {}}, pending)
    assert pending == {}


def test_an_error_must_be_one_of_the_methods_own(validator: Validator) -> None:
    validator.message("daemon-to-client", error_answer("shutting_down", validator), {1: "daemon.ping"})
    validator.message("daemon-to-client", error_answer("cap_reached", validator), {1: "sandbox.ensure"})
    with pytest.raises(SchemaError, match="cap_reached is not among"):
        validator.message("daemon-to-client", error_answer("cap_reached", validator), {1: "daemon.ping"})


def test_a_wrong_request_is_answered_by_an_error_only(validator: Validator) -> None:
    validator.message("daemon-to-client", error_answer("invalid_params", validator), {1: None})
    with pytest.raises(SchemaError, match="wrong request"):
        validator.message("daemon-to-client", {"jsonrpc": "2.0", "id": 1, "result": {}}, {1: None})


def test_a_client_ignores_what_is_new_in_answers() -> None:
    result = SOURCES["sandbox.get"]["examples"][0]["result"]
    newer = {"sandbox": result["sandbox"] | {"mood": "fine"}}
    Validator(strict=False).result("sandbox.get", newer)
    with pytest.raises(SchemaError, match="mood"):
        Validator().result("sandbox.get", newer)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,\n"result":{}}\n',
        b'{"jsonrpc":"2.0","id":7,"id":7,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":7,"result":{}}' + b" " * 1048576 + b"\n",
        b'{"jsonrpc":"2.0","id":7,"result":{"a":"\xff"}}\n',
    ],
    ids=["no newline", "two lines", "twice a member", "too long", "not UTF-8"],
)
def test_lines_that_are_refused(line: bytes, validator: Validator) -> None:
    validator.line("daemon-to-client", b'{"jsonrpc":"2.0","id":7,"result":{}}\n', {7: "daemon.ping"})
    with pytest.raises(SchemaError):
        validator.line("daemon-to-client", line, {7: "daemon.ping"})


def notified(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"


@pytest.fixture
def conversation(validator: Validator) -> Conversation:
    """A command with the smallest window has been started and has written 4096 bytes."""
    made = Conversation(validator)
    made.sent({"jsonrpc": "2.0", "id": 1, "method": "exec.start", "params": exec_start(window=4096)})
    made.received(started(1, attached=False))
    made.received(notified("exec.output", exec_id="e1", stream="stdout", offset=0, pos=0, data="x" * 4094))
    made.received(notified("exec.output", exec_id="e1", stream="stderr", offset=0, pos=4094, data="ü"))
    return made


def started(request_id: int, attached: bool) -> bytes:
    result = {"exec_id": "e1", "accepted": True, "attached": attached}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode() + b"\n"


def test_a_conversation_counts_bytes_not_characters(conversation: Conversation) -> None:
    conversation.received(notified("exec.exit", **exec_exit(output_bytes=4096)))


def test_a_conversation_refuses_output_beyond_the_window(conversation: Conversation) -> None:
    more = notified("exec.output", exec_id="e1", stream="stdout", offset=4094, pos=4096, data_b64="/w==")
    acknowledged = copy.deepcopy(conversation)
    acknowledged.sent({"jsonrpc": "2.0", "method": "exec.ack", "params": {"exec_id": "e1", "offset": 1}})
    acknowledged.received(more)
    with pytest.raises(SchemaError, match="window"):
        conversation.received(more)


@pytest.mark.parametrize(("offset", "pos"), [(0, 4096), (4093, 4096), (4095, 4096), (4094, 4095), (4094, 0), (4093, 5000)])
def test_a_conversation_refuses_gaps_and_overlaps(offset: int, pos: int, conversation: Conversation) -> None:
    with pytest.raises(SchemaError, match="expected 4096, 4094"):
        conversation.received(notified("exec.output", exec_id="e1", stream="stdout", offset=offset, pos=pos, data="x"))


def test_a_conversation_wants_what_was_dropped_to_be_counted(conversation: Conversation) -> None:
    conversation.sent({"jsonrpc": "2.0", "method": "exec.ack", "params": {"exec_id": "e1", "offset": 1}})
    conversation.received(notified("exec.output", exec_id="e1", stream="stdout", offset=4194, pos=4196, data="x"))
    for_nothing = copy.deepcopy(conversation)
    conversation.received(notified("exec.exit", **exec_exit(output_bytes=4197, dropped_bytes=100)))
    with pytest.raises(SchemaError, match="counts 4197"):
        for_nothing.received(notified("exec.exit", **exec_exit(output_bytes=4197, dropped_bytes=99)))


def test_a_conversation_goes_on_where_it_was_attached(conversation: Conversation) -> None:
    conversation.sent({"jsonrpc": "2.0", "id": 2, "method": "exec.start", "params": exec_start(window=4096, offset=4000)})
    conversation.received(started(2, attached=True))
    conversation.received(notified("exec.output", exec_id="e1", stream="stdout", offset=4000, pos=4000, data="x" * 94))
    conversation.received(notified("exec.exit", **exec_exit(output_bytes=4094)))


def test_a_conversation_refuses_anything_after_the_exit(conversation: Conversation) -> None:
    conversation.received(notified("exec.exit", **exec_exit(output_bytes=4096)))
    with pytest.raises(SchemaError, match="second"):
        conversation.received(notified("exec.exit", **exec_exit(output_bytes=4096)))
    with pytest.raises(SchemaError, match="after exec.exit"):
        conversation.received(notified("exec.output", exec_id="e1", stream="stdout", offset=4094, pos=4096, data="x"))


def test_a_conversation_refuses_a_wrong_count(conversation: Conversation) -> None:
    with pytest.raises(SchemaError, match="counts 4095"):
        conversation.received(notified("exec.exit", **exec_exit(output_bytes=4095)))


# --- what is made from the files ---


def test_reference_is_up_to_date() -> None:
    done = generate("--check")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def sources_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROTOCOL_DIR, tmp_path / "protocol", ignore=shutil.ignore_patterns("__pycache__")))


def test_check_notices_an_old_reference(sources_copy: Path) -> None:
    script = sources_copy / "generate.py"
    assert generate("--check", script=script).returncode == 0
    path = sources_copy / "methods" / "daemon.ping.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("Is the daemon there", "Is the daemon here"), encoding="utf-8")
    done = generate("--check", script=script)
    assert done.returncode == 1 and "out of date" in done.stderr
    assert generate("--docs", script=script).returncode == 0
    assert generate("--check", script=script).returncode == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("methods/plan.list.json", '"unauthorized"', '"no_such_error"', "no error is named no_such_error"),
        ("methods/plan.list.json", "#/$defs/plan_name", "#/$defs/nothing", "nothing does not exist"),
        ("methods/plan.list.json", '"method": "plan.list"', '"method": "plan.get"', "is called plan.get"),
        ("methods/plan.list.json", '"since": 1,', '"since": 1, "extra": 1,', "unknown: extra"),
        ("methods/plan.list.json", '"since": 1,', "", "'since' is missing"),
        ("methods/plan.list.json", '"since": 1,', '"since": ,', "plan.list.json"),
        ("errors.json", '"code": 2001,', '"code": 2002,', "code 2002 is there twice"),
        ("errors.json", '"code": 2001,', '"code": 6001,', "code 6001 is in no block"),
        ("errors.json", '"code": 2001,', '"code": -32000,', "code -32000 is in no block"),
    ],
)
def test_contradictions_stop_the_build(
    file: str, old: str, new: str, told: str, sources_copy: Path, tmp_path: Path
) -> None:
    path = sources_copy / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    done = generate("--out", str(tmp_path / "gen"), script=sources_copy / "generate.py")
    assert done.returncode == 1 and told in done.stderr, done.stderr
    assert not (tmp_path / "gen").exists()


def test_a_second_run_touches_no_file(tmp_path: Path) -> None:
    assert generate("--out", str(tmp_path)).returncode == 0
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.?pp")}
    assert len(times) == 3
    assert generate("--out", str(tmp_path)).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.?pp")} == times


def test_openrpc_document_has_what_openrpc_1_2_6_asks_for(validator: Validator) -> None:
    document = json.loads(generate("--openrpc").stdout)
    validator.result("rpc.discover", document)
    assert document["info"]["title"] and document["info"]["version"] == "1"
    assert [method["name"] for method in document["methods"]] == sorted(METHODS)
    components = document["components"]
    for method in document["methods"]:
        assert method["paramStructure"] == "by-name"
        assert {param["name"] for param in method["params"]} == set(SOURCES[method["name"]]["params"]["properties"])
        assert all({"name", "schema", "required"} <= param.keys() for param in method["params"])
        assert {"name", "schema"} <= method["result"].keys()
        assert (method["x-kind"], method["x-direction"]) == (
            SOURCES[method["name"]]["kind"],
            SOURCES[method["name"]]["direction"],
        )
        assert all({"name", "params", "result"} <= example.keys() for example in method["examples"])
        shown = len(method["examples"]) + len(method.get("x-error-examples", ()))
        assert shown == len(SOURCES[method["name"]]["examples"])
    for reference in protocol_module("sources").references(document):
        kind, name = reference.removeprefix("#/components/").split("/")
        assert name in components[kind], reference
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(components["schemas"]["exec_id"]).validate("-")


def test_schemas_mean_the_same_to_draft_7(validator: Validator) -> None:
    """OpenRPC readers use draft 7; a keyword that it lacks would let them accept what the daemon refuses."""
    newer = {
        "dependentRequired", "dependentSchemas", "prefixItems", "unevaluatedProperties", "unevaluatedItems",
        "minContains", "maxContains", "$dynamicRef", "$anchor",
    }  # fmt: skip

    def keywords(schema: Any) -> set[str]:
        if isinstance(schema, list):
            return {word for item in schema for word in keywords(item)}
        if isinstance(schema, dict):
            return set(schema) | {word for value in schema.values() for word in keywords(value)}
        return set()

    for schema in [*(part for source in SOURCES.values() for part in source.values()), validator.protocol.types]:
        assert not keywords(schema) & newer
