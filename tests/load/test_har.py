"""A browser's recording becomes a plan that can be carried out, or one clear message."""

import base64
import email
import hashlib
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.core.document.decode import decode
from partywall.errors import UsageError
from partywall.load import check
from partywall.load.compiling import program
from partywall.load.recorder.correlation import Exchange, Response, correlate
from partywall.load.recorder.plan import plan_of


def entry(at: str, url: str, status: int = 200, *, method: str = "GET", time_ms: float = 100, **more):
    request = {"method": method, "url": url, "headers": more.pop("headers", []), "postData": more.pop("data", {})}
    response = {"status": status, "headers": [], "content": {"text": more.pop("received", "")}}
    response["redirectURL"] = more.pop("redirect", "")
    started = f"2026-11-21T10:00:{at}+00:00"
    return {"startedDateTime": started, "time": time_ms, "request": request, "response": response} | more


def har(*entries, pages=()) -> str:
    return json.dumps({"log": {"version": "1.2", "pages": list(pages), "entries": list(entries)}})


def imported(text: str, leave_out=()):
    result = plan_of(text, "s.har", leave_out)
    return result, check.loads(result.text.encode(), "plan.yaml", Path(__file__).parent)


SESSION = har(
    entry("00.000", "http://shop.test/", pageref="p1"),
    entry("00.050", "http://cdn.ads.test/x.js", pageref="p1"),
    entry("00.120", "http://shop.test/style.css", 304, pageref="p1"),
    entry(
        "03.000",
        "http://shop.test/login?next=%2F",
        302,
        method="POST",
        pageref="p2",
        redirect="http://shop.test/home",
        headers=[
            {"name": "Cookie", "value": "session=1"},
            {"name": ":authority", "value": "shop.test"},
            {"name": "X-Cost", "value": "$5"},
        ],
        data={"mimeType": "application/x-www-form-urlencoded", "params": [{"name": "user", "value": "ada"}]},
    ),
    entry("03.120", "http://shop.test/home", pageref="p2", received="<input name=csrf value='f3a9c2d41b'>"),
    entry("05.000", "http://shop.test/buy?csrf=f3a9c2d41b", pageref="p2"),
    {"startedDateTime": "2026-11-21T10:00:06Z", "request": {"method": "GET", "url": "data:image/png;base64,x"}},
    pages=[{"id": "p1", "title": "Shop – Home"}, {"id": "p2", "title": "Log in"}],
)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("http://shop.test:8080/men/shirts?x=1", "men-shirts"),
        ("http://shop.test/", "page"),
        ("http://[draft", "http-draft"),
    ],
)
def test_a_page_that_a_browser_called_by_its_url_is_called_by_its_path(title, name):
    page = {"id": "p1", "title": title}
    _, loaded = imported(har(entry("00.000", "http://shop.test/men/shirts?x=1", pageref="p1"), pages=[page]))
    assert loaded.plan.users["visitor"].actions[0].transaction.name == name


def test_a_session_becomes_transactions_with_the_users_thinking_between_and_within_them():
    _, loaded = imported(SESSION, ["*.ads.test"])
    first, think, second = loaded.plan.users["visitor"].actions
    assert (first.transaction.name, second.transaction.name) == ("Shop-Home", "Log-in")
    assert think.think.constant == 2_780_000_000
    assert [bool(step.think) for step in second.transaction.steps] == [False, True, False]
    assert [step.http.url for step in first.transaction.steps] == ["/", "/style.css"]


def test_cookies_redirects_caches_and_hosts_left_out_are_not_in_the_plan():
    result, loaded = imported(SESSION, ["*.ads.test"])
    login = loaded.plan.users["visitor"].actions[2].transaction.steps[0].http
    assert login.headers == {"X-Cost": "$$5"}
    assert login.body.form == {"user": "ada"}
    assert not login.checks
    assert "/home" not in result.text
    assert "ads.test" not in result.text
    assert result.hosts == {"shop.test": 4}
    assert set(result.notes) == {
        "1 × not of http or https",
        "1 × to hosts left out",
        "1 × targets of redirects, which the generator follows itself",
        "1 × a cookie that no response set, so users lack it (session); record from before the log-in",
        "1 × a value of an earlier response, extracted there into a variable",
    }
    program(loaded)


def test_values_from_earlier_responses_are_marked_where_they_are_used():
    result, _ = imported(SESSION)
    lines = result.text.splitlines()
    marked = next(number for number, line in enumerate(lines) if "dynamic: 'f3a9c2d41b'" in line)
    assert "came in the response to POST /login" in lines[marked]
    assert "extracted there as ${csrf}" in lines[marked]
    assert any("/buy?csrf=${csrf}" in line for line in lines[marked : marked + 4])


def test_redirects_to_another_server_are_kept_as_requests_of_their_own():
    _, loaded = imported(har(entry("00.0", "http://a/", 302, redirect="http://b/"), entry("00.1", "http://b/")))
    (page,) = loaded.plan.users["visitor"].actions
    steps = page.transaction.steps
    assert [step.http.url for step in steps] == ["/", "http://b/"]
    assert steps[0].http.redirects == 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "this is not JSON"),
        ('{"log":\n}', "s.har:2: this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("[]", "this is not a HAR file"),
        ('{"log": {}}', "this is not a HAR file"),
        (har(), "there is no request to send, it has no entries"),
        (har(entry("00.0", "ws://a/")), "there is no request to send"),
        ('{"log": {"entries": [1, null, {"request": 5}]}}', "there is no request to send"),
    ],
)
def test_what_is_no_recording_is_one_clear_message(content, expected):
    with pytest.raises(UsageError) as caught:
        plan_of(content, "s.har")
    assert len(caught.value.problems) == 1
    assert expected in str(caught.value)
    assert re.search("save it|record again", str(caught.value))


def test_leaving_out_every_host_says_which_there_are():
    with pytest.raises(UsageError, match=r"hosts in it: cdn\.ads\.test, shop\.test"):
        plan_of(SESSION, "s.har", ["*"])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=10,
)
PAIRS = st.lists(
    st.fixed_dictionaries({"name": st.text(max_size=12) | ANY, "value": st.text(max_size=30) | ANY}), max_size=3
)
URLS = st.sampled_from(["http://a.test", "https://b:8/x?y=1", "http://[::1]:9/", "http://[bad", "http://a:99999/"])
WILD = st.fixed_dictionaries(
    {
        "startedDateTime": st.sampled_from(["2026-11-21T10:00:00Z", "2026-11-21T10:00:09.5+01:00"]) | ANY,
        "time": st.floats() | ANY,
        "pageref": st.sampled_from(["p1", "p2", ""]) | ANY,
        "request": st.fixed_dictionaries(
            {
                "method": st.sampled_from(["GET", "POST", "get"]) | st.text(max_size=5),
                "url": st.tuples(URLS, st.text(max_size=20)).map("".join) | ANY,
                "headers": PAIRS | ANY,
                "postData": st.fixed_dictionaries(
                    {
                        "mimeType": st.sampled_from(["application/x-www-form-urlencoded", "text/plain"]),
                        "text": st.text(max_size=30),
                        "params": PAIRS,
                    }
                )
                | ANY,
            }
        ),
        "response": st.fixed_dictionaries(
            {
                "status": st.integers(-1, 700) | ANY,
                "redirectURL": URLS | ANY,
                "content": st.fixed_dictionaries({"text": st.text(max_size=30)}) | ANY,
            }
        )
        | ANY,
    }
)


@pytest.mark.long
@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "200")))
@given(st.lists(WILD | ANY, max_size=4), st.lists(ANY, max_size=2))
def test_any_recording_is_a_plan_that_compiles_or_a_users_mistake(entries: list, pages: list):
    content = json.dumps({"log": {"entries": entries, "pages": pages}})
    try:
        result = plan_of(content, "s.har")
    except UsageError:
        return
    program(check.loads(result.text.encode(), "plan.yaml", Path(__file__).parent))


@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "200")))
@given(st.text(max_size=200) | ANY.map(json.dumps))
def test_any_text_is_a_users_mistake(content: str):
    with pytest.raises(UsageError):
        plan_of(content, "s.har")


def test_a_form_with_files_keeps_its_fields_and_says_that_files_are_missing():
    fields = [{"name": "who", "value": "ada $1"}, {"name": "photo", "fileName": "a.png", "value": ""}]
    data = {"mimeType": "multipart/form-data; boundary=x", "params": fields}
    headers = [{"name": "Content-Type", "value": "multipart/form-data; boundary=x"}]
    result, loaded = imported(har(entry("00.000", "http://a.test/up", method="POST", data=data, headers=headers)))
    (step,) = [step for step in program(loaded)["kinds"][0]["actions"] if "http" in str(step)]
    assert [
        part["name"] for part in json.loads(json.dumps(step))["transaction"]["steps"][0]["http"]["body"]["multipart"]
    ] == ["who", "photo"]
    assert "boundary" not in json.dumps(step)
    assert any("whose content the recording lacks" in note for note in result.notes)


def shop() -> str:
    """A session with a log-in form, a token in a header, and JSON calls after clicks, as a proxy records it."""
    cart, token = "c4f1d7ab99", "tok-8812-xyzzy"
    html = {"mimeType": "text/html; charset=utf-8"}
    page = [{"name": "Sec-Fetch-Dest", "value": "document"}]
    form = f'<title>Log in</title><meta name="build" content="1"><form><input name="csrf" value="{token}"></form>'
    entries = [
        entry("00.0", "https://shop.test/", received=form, headers=page),
        entry("00.2", "https://shop.test/app.8f3e2a1b77.js", headers=[{"name": "Sec-Fetch-Dest", "value": "script"}]),
        entry("00.3", "https://shop.test/logo.png", headers=[{"name": "Sec-Fetch-Dest", "value": "image"}]),
        entry(
            "02.0",
            "https://shop.test/login",
            method="POST",
            headers=page,
            received=json.dumps({"cart": {"id": cart}, "items": [1, 2]}),
            data={
                "mimeType": "application/x-www-form-urlencoded",
                "text": f"user=ada&csrf={token}",
                "params": [{"name": "user", "value": "ada"}, {"name": "csrf", "value": token}],
            },
        ),
        entry(
            "04.0",
            f"https://shop.test/api/cart/{cart}",
            method="POST",
            headers=[{"name": "Sec-Fetch-Dest", "value": "empty"}, {"name": "X-CSRF-Token", "value": token}],
            data={"mimeType": "application/json", "text": json.dumps({"item": 7, "cart": cart})},
        ),
    ]
    entries[0]["response"]["content"] |= html
    return har(*entries)


def test_a_changing_value_is_extracted_where_it_came_and_sent_as_a_variable():
    result, loaded = imported(shop())
    first, _, login, _, call = loaded.plan.users["visitor"].actions
    document = first.transaction.steps[0].http
    assert document.extract["csrf"].css == 'input[name="csrf"]'
    assert document.extract["csrf"].attribute == "value"
    send = login.transaction.steps[0].http
    assert send.body.form["csrf"] == "${csrf}"
    assert send.extract["id"].json_ == "$.cart.id"
    post = call.transaction.steps[0].http
    assert (post.url, post.name) == ("/api/cart/${id}", "POST /api/cart/{id}")
    assert post.headers["X-CSRF-Token"] == "${csrf}"
    assert json.loads(post.body.text) == {"item": 7, "cart": "${id}"}
    assert "2 × a value of an earlier response, extracted there into a variable" in result.notes
    program(loaded)


def test_static_files_of_a_page_are_one_group_and_have_one_name():
    _, loaded = imported(shop())
    page = loaded.plan.users["visitor"].actions[0].transaction
    group = page.steps[1].transaction
    assert (page.name, group.name) == ("Log-in", "Log-in-static")
    assert [step.http.name for step in group.steps] == ["static files", "static files"]
    assert group.steps[0].http.url == "/app.8f3e2a1b77.js"


def test_a_call_after_a_pause_is_an_action_of_the_user_and_pauses_are_kept():
    _, loaded = imported(shop())
    actions = loaded.plan.users["visitor"].actions
    assert [step.transaction.name for step in actions if step.transaction] == [
        "Log-in",
        "POST-login",
        "POST-api-cart-id",
    ]
    assert [round(step.think.constant / 1e9, 1) for step in actions if step.think] == [1.6, 1.9]


def test_a_value_that_the_user_sent_first_is_not_extracted():
    text = har(
        entry("00.0", "http://a/?name=customer42", received="hello customer42"),
        entry("01.0", "http://a/next?name=customer42"),
    )
    result, _ = imported(text)
    assert "${" not in result.text


def test_a_value_that_cannot_be_extracted_is_marked():
    text = har(
        entry("00.0", "http://a/", received="tok1234567\ntok1234567x"),
        entry("01.0", "http://a/next?t=tok1234567"),
    )
    result, _ = imported(text)
    assert "dynamic: 'tok1234567'" in result.text
    assert "there extract:" in result.text


@settings(deadline=None)
@given(
    st.text(alphabet="abcdef0123456789", min_size=8, max_size=24).filter(lambda v: any(c.isdigit() for c in v)),
    st.sampled_from(["<input name='t' value='{}'>", '{{"a": [{{"b-c": "{}"}}]}}', "var token = '{}';", "id={}&x=1"]),
)
def test_an_extraction_gives_the_recorded_value_again(value: str, form: str):
    text = form.format(value)
    result = Response(Exchange("http://a/", (), None, text, ())).extraction_of(value)
    assert result is not None
    _, extract = result
    if "regex" in extract:
        assert re.search(extract["regex"], text).group(1) == value
    elif "json" in extract:
        assert extract["json"] == '$.a[0]["b-c"]'
    else:
        assert extract == {"css": 'input[name="t"]', "attribute": "value"}


PIECES = (
    "<![",
    "<!--",
    "<!",
    "<?",
    "]]>",
    "<![CDATA[",
    "<![if ",
    "[",
    "]",
    "&#",
    "<p id='t'",
    ">",
    "</",
    "x",
    " ",
    "--",
)


@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "200")))
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_page_is_read_up_to_what_its_parser_refuses(page: str):
    text = f"<input name='t' value='tok1234567'>{page}"
    _, extract = Response(Exchange("http://a/", (), None, text, ())).extraction_of("tok1234567")
    assert extract == {"css": 'input[name="t"]', "attribute": "value"}


def test_a_relative_redirect_is_followed_by_the_generator_and_its_page_gives_the_values():
    text = har(
        entry("00.0", "http://a/login", 302, method="POST", redirect="/home"),
        entry("00.1", "http://a/home", received='{"token": "abc12345"}'),
        entry("00.2", "http://a/next?t=abc12345"),
    )
    _, loaded = imported(text)
    (page,) = loaded.plan.users["visitor"].actions
    login, following = (step.http for step in page.transaction.steps)
    assert (login.method, login.url, login.extract["token"].json_) == ("POST", "/login", "$.token")
    assert following.url == "/next?t=${token}"


# What the browser did by itself


def steps_of(*entries, pages=()) -> list[dict]:
    """All steps of the plan in one list, without the transactions around them."""
    result = plan_of(har(*entries, pages=pages), "s.har")

    def flat(steps):
        for step in steps:
            yield from flat(step["transaction"]["steps"]) if "transaction" in step else [dict(step)]

    return list(flat(result.plan["users"]["visitor"]["actions"]))


def requests_of(*entries) -> list[dict]:
    return [step["http"] for step in steps_of(*entries) if "http" in step]


def notes_of(*entries) -> str:
    return "; ".join(plan_of(har(*entries), "s.har").notes)


def answered(at: str, url: str, **response):
    """An entry with more in its response."""
    made = entry(at, url)
    made["response"] |= response
    return made


PAGE = entry("00.0", "http://a.test/")


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (entry("01.0", "http://a.test/x", _fromCache="memory"), "1 × answered by the browser's cache"),
        (entry("01.0", "http://a.test/x", _fetchType="Disk Cache"), "1 × answered by the browser's cache"),
        (entry("01.0", "http://a.test/x", _wasFulfilled=True), "1 × answered by the browser's cache"),
        (
            answered(
                "01.0", "http://a.test/x", _fetchedViaServiceWorker=True, _serviceWorkerResponseSource="cache-storage"
            ),
            "1 × answered by the browser's cache",
        ),
        (entry("01.0", "http://a.test/x", 0), "1 × without a response: blocked, aborted or failed"),
        (entry("01.0", "http://a.test/x", -1), "1 × without a response: blocked, aborted or failed"),
        (entry("01.0", "http://a.test/x", _wasAborted=True), "1 × without a response: blocked, aborted or failed"),
        (
            answered("01.0", "http://a.test/x", status=307, statusText="Internal Redirect"),
            "1 × redirects inside the browser",
        ),
        (
            answered(
                "01.0", "http://a.test/x", status=302, headers=[{"name": "non-authoritative-reason", "value": "HSTS"}]
            ),
            "1 × redirects inside the browser",
        ),
        (entry("01.0", "http://a.test:443", method="CONNECT"), "1 × tunnels through a proxy (CONNECT)"),
        (entry("01.0", "http://a.test/x", _resourceType="websocket"), "1 × an upgrade to another protocol"),
        (
            answered("01.0", "http://a.test/x", content={"mimeType": "text/event-stream; charset=utf-8"}),
            "1 × streams of events, which last as long as their page",
        ),
        (entry("01.0", "http://a$b.test/x"), "1 × with a URL that cannot be sent"),
        (entry("01.0", "http://a b.test/x"), "1 × with a URL that cannot be sent"),
        (entry("01.0", "http://a.test:99999/x"), "1 × with a URL that cannot be sent"),
    ],
)
def test_what_no_server_was_asked_for_is_left_out_and_said(odd: dict, why: str):
    assert [request["url"] for request in requests_of(PAGE, odd)] == ["/"]
    assert why in notes_of(PAGE, odd)
    with pytest.raises(UsageError, match="there is no request to send: 1 × "):
        plan_of(har(odd), "s.har")


@pytest.mark.parametrize(
    "usual",
    [
        entry("01.0", "http://a.test/x", 304, _fromCache="disk"),
        entry("01.0", "http://a.test/x", cache={"afterRequest": {"hitCount": 1}}),
        answered("01.0", "http://a.test/x", _fetchedViaServiceWorker=True, _serviceWorkerResponseSource="network"),
        entry("01.0", "http://a.test/x", method="POST", received="data: 1"),
        answered("01.0", "http://a.test/x", status=307, statusText="Temporary Redirect"),
    ],
)
def test_what_a_server_answered_is_kept(usual: dict):
    usual["response"]["content"] = {"mimeType": "text/event-stream"} if usual["request"]["method"] == "POST" else {}
    assert len(requests_of(PAGE, usual)) == 2
    assert notes_of(PAGE, usual) == ""


def test_firefox_marks_what_its_cache_answered_by_a_key_that_others_always_write():
    log = json.loads(har(PAGE, entry("01.0", "http://a.test/x", cache={"afterRequest": None})))
    assert plan_of(json.dumps(log), "s.har").notes == ()
    log["log"]["creator"] = {"name": "Firefox", "version": "147.0"}
    assert "1 × answered by the browser's cache" in plan_of(json.dumps(log), "s.har").notes[0]


def test_cookies_from_before_the_recording_are_named():
    login = answered("01.0", "http://a.test/in", headers=[{"name": "Set-Cookie", "value": "a=1; Path=/\nb=2"}])
    later = entry("02.0", "http://a.test/x", headers=[{"name": "cookie", "value": "a=1; b=2; sid=9"}])
    assert notes_of(login, later) == (
        "1 × a cookie that no response set, so users lack it (sid); record from before the log-in"
    )


# Redirects


def test_a_redirect_and_its_target_are_found_among_other_requests():
    requests = requests_of(
        entry("00.0", "http://a.test/go", 302, redirect="/end"),
        entry("00.05", "http://a.test/poll"),
        entry("00.15", "http://a.test/end?no"),
        entry("00.2", "http://a.test/end"),
        entry("00.4", "http://a.test/end"),
    )
    assert [request["url"] for request in requests] == ["/go", "/poll", "/end?no", "/end"]


def test_a_request_that_comes_later_is_not_the_target_of_a_redirect():
    requests = requests_of(entry("00.0", "http://a.test/go", 302, redirect="/end"), entry("09.0", "http://a.test/end"))
    assert [request["url"] for request in requests] == ["/go", "/end"]


@pytest.mark.parametrize(
    ("status", "method", "after", "kept"),
    [
        (302, "POST", "GET", 1),
        (302, "POST", "POST", 2),
        (303, "PUT", "GET", 1),
        (307, "POST", "POST", 1),
        (307, "POST", "GET", 2),
        (308, "PUT", "PUT", 1),
        (301, "HEAD", "HEAD", 1),
        (304, "GET", "GET", 2),
        (300, "GET", "GET", 2),
    ],
)
def test_a_target_has_the_method_that_a_browser_uses_for_it(status: int, method: str, after: str, kept: int):
    first = entry("00.0", "http://a.test/go", status, method=method, redirect="http://A.test:80/end#part")
    assert len(requests_of(first, entry("00.1", "http://a.test/end", method=after))) == kept


def test_a_redirect_is_known_by_its_location_header_too():
    first = answered("00.0", "http://a.test/go", status=302, headers=[{"name": "Location", "value": "end"}])
    assert len(requests_of(first, entry("00.1", "http://a.test/end"))) == 1


def test_a_chain_of_redirects_is_one_request_unless_it_leads_to_another_server():
    chain = [
        entry("00.0", "http://a.test/1", 302, redirect="/2"),
        entry("00.1", "http://a.test/2", 302, redirect="/3"),
    ]
    assert [r["url"] for r in requests_of(*chain, entry("00.2", "http://a.test/3"))] == ["/1"]
    chain[1]["response"]["redirectURL"] = "http://b.test/3"
    requests = requests_of(*chain, entry("00.2", "http://b.test/3"))
    assert [(r["url"], r.get("redirects")) for r in requests] == [("/1", 0), ("/2", 0), ("http://b.test/3", None)]


# Pauses and pages


def thinks_of(*entries) -> list[str]:
    return [step["think"] for step in steps_of(*entries) if "think" in step]


def test_a_long_response_does_not_remove_pauses():
    long = entry("00.5", "http://a.test/download", time_ms=60_000, pageref="p")
    clicks = [entry(at, f"http://a.test/{at}", pageref="p") for at in ("10.0", "20.0", "35.0")]
    assert thinks_of(entry("00.0", "http://a.test/", pageref="p"), long, *clicks) == [
        "400ms",
        "9500ms",
        "9900ms",
        "14900ms",
    ]


def test_requests_while_a_page_still_loads_are_no_pause():
    page = [entry("00.0", "http://a.test/", time_ms=900), entry("00.4", "http://a.test/x", time_ms=100)]
    assert thinks_of(*page, entry("02.0", "http://a.test/y")) == ["1100ms"]


def test_pages_that_load_beside_each_other_are_one_transaction_in_the_recorded_order():
    order = [("00.0", "p1"), ("00.1", "p2"), ("00.2", "p1"), ("00.3", "p2"), ("05.0", "p2"), ("09.0", "p1")]
    entries = [entry(at, f"http://a.test/{at}", pageref=page) for at, page in order]
    result = plan_of(har(*entries, pages=[{"id": "p1", "title": "Home"}, {"id": "p2", "title": "Frame"}]), "s.har")
    parts = [step["transaction"] for step in result.plan["users"]["visitor"]["actions"] if "transaction" in step]
    assert [(part["name"], len(part["steps"])) for part in parts] == [("Home", 4), ("Frame", 1), ("Home-2", 1)]
    assert result.notes == ("2 × a request of a page that loads beside another, in one transaction with it",)


# Bodies, parameters and names


def sent(data: dict, *headers: tuple[str, str], **request) -> tuple[dict, str]:
    """The request that a recorded body becomes, and the notes."""
    made = entry("00.0", "http://a.test/", method="POST", data=data)
    made["request"] |= {"headers": [{"name": name, "value": value} for name, value in headers]} | request
    return requests_of(made)[0], notes_of(made)


FORM = "application/x-www-form-urlencoded"
FILES = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("data", "body"),
    [
        ({"mimeType": "application/json", "text": "eyJhIjoxfQ==", "encoding": "base64"}, {"text": '{"a":1}'}),
        ({"mimeType": "x/y", "text": "/wD+\r\n", "encoding": "base64"}, {"base64": "/wD+"}),
        ({"mimeType": "text/plain", "text": "a\r\n\tb"}, {"text": "a\r\n\tb"}),
        ({"mimeType": FORM, "text": "a=1+2&b=%C3%A4"}, {"form": {"a": "1 2", "b": "ä"}}),
        ({"mimeType": FORM, "text": "YT0x", "encoding": "base64"}, {"form": {"a": "1"}}),
        ({"mimeType": FORM, "text": "a=1&a=2"}, {"text": "a=1&a=2"}),
        ({"mimeType": FORM, "text": "a=%E4"}, {"text": "a=%E4"}),
        ({"mimeType": FORM, "text": "a=100%"}, {"text": "a=100%"}),
        ({"mimeType": FORM, "text": "plain"}, {"text": "plain"}),
        ({"mimeType": FORM, "text": "a="}, {"form": {"a": ""}}),
        ({"mimeType": FORM, "text": "Content-Type: x\r\nContent-Length: 3\r\n\r\na=1"}, {"form": {"a": "1"}}),
        ({"mimeType": FORM, "params": [{"name": "a", "value": "1"}] * 2 + [{"name": "$"}]}, {"text": "a=1&a=1&%24="}),
        ({"mimeType": FORM, "params": [{"name": "a", "value": "l\r\nm"}]}, {"form": {"a": "l\r\nm"}}),
        ({"mimeType": FORM, "params": [{"name": '{"q":1}', "value": ""}]}, {"text": '{"q":1}'}),
        ({"mimeType": FILES, "params": [{"name": "a", "value": "1", "contentType": "text/css"}]},
         {"multipart": {"a": {"text": "1", "content_type": "text/css"}}}),
    ],
)  # fmt: skip
def test_a_body_comes_through_without_loss(data: dict, body: dict):
    request, notes = sent(data)
    assert (request["body"], notes) == (body, "")
    whole = "form" in body or "multipart" in body
    assert request.get("headers") == (None if whole else {"Content-Type": data["mimeType"]})
    assert "Content-Type" not in sent(data, ("content-type", data["mimeType"]))[0].get("headers", {})


def test_a_form_whose_fields_share_a_name_or_hold_files_is_sent_as_on_the_wire():
    params = [
        {"name": "f", "fileName": 'a".txt', "contentType": "text/plain", "value": "one"},
        {"name": "f", "fileName": "b.txt", "value": "two\u200b"},
    ]
    request, notes = sent({"mimeType": FILES, "params": params}, ("Content-Type", FILES))
    text = base64.b64decode(request["body"]["base64"]).decode()
    message = email.message_from_string(f"Content-Type: {request['headers']['Content-Type']}\n\n{text}")
    assert [(part.get_filename(), part.get_payload().strip()) for part in message.get_payload()] == [
        ("a%22.txt", "one"),
        ("b.txt", "two\u200b"),
    ]
    assert notes == ""


@pytest.mark.parametrize(
    ("data", "request_", "said"),
    [
        ({}, {"bodySize": 12}, "1 × a body that the recording lacks"),
        ({}, {"headers": [{"name": "Content-Length", "value": "7"}]}, "1 × a body that the recording lacks"),
        ({"text": "??", "encoding": "base64"}, {"bodySize": 2}, "1 × a body whose recorded form is damaged"),
        ({"text": "a\ufffd"}, {}, "1 × a body with bytes that the recording lost"),
        ({"text": '{"q": "\ud83d"}'}, {}, "1 × a text with half a character"),
        ({}, {"headers": [{"name": "a b", "value": "1"}]}, "1 × a header that cannot be sent"),
        ({}, {"url": "http://ada:p%40ss@a.test/"}, "1 × a name and password in a URL"),
    ],
)
def test_what_is_lost_or_changed_is_said(data: dict, request_: dict, said: str):
    assert said in sent(data, **request_)[1]


def test_names_and_passwords_of_a_url_are_a_header():
    request, _ = sent({}, url="http://ada:p%40ss@a.test/")
    assert request["headers"] == {"Authorization": "Basic " + base64.b64encode(b"ada:p@ss").decode()}
    request, _ = sent({}, ("authorization", "Bearer x"), url="http://ada@a.test/")
    assert request["headers"] == {"authorization": "Bearer x"}


def test_headers_of_one_name_are_one_with_commas():
    request, _ = sent({}, ("Accept", "text/html"), ("accept", "*/*"), ("X-A", "1"))
    assert request["headers"] == {"Accept": "text/html, */*", "X-A": "1"}


@pytest.mark.parametrize(
    ("url", "base", "path"),
    [
        ("http://bücher.example:8099/start", "http://xn--bcher-kva.example:8099", "/start"),
        ("http://b%C3%BCcher.example/", "http://xn--bcher-kva.example", "/"),
        ("https://straße.de/", "https://xn--strae-oqa.de", "/"),
        ("HTTP://A.Test:80?q=1#x", "http://a.test", "/?q=1"),
        ("https://[::1]:443/", "https://[::1]", "/"),
        ("http://a.test/ä b|c", "http://a.test", "/%C3%A4%20b%7Cc"),
        ("http://a.test/?q=\ud83d", "http://a.test", "/?q=%EF%BF%BD"),
        ("http://a.test/%zz$", "http://a.test", "/%zz$$"),
    ],
)
def test_a_url_is_sent_as_browsers_send_it(url: str, base: str, path: str):
    plan = plan_of(har(entry("00.0", url)), "s.har").plan
    assert (plan["base"], requests_of(entry("00.0", url))[0]["url"]) == (base, path)


def test_parameters_that_are_beside_the_url_are_sent():
    made = entry("00.0", "http://a.test/x#?")
    made["request"]["queryString"] = [{"name": "q", "value": "a b"}, {"name": "ü", "value": ""}]
    assert requests_of(made)[0]["url"] == "/x?q=a+b&%C3%BC="
    made["request"]["url"] = "http://a.test/x?q=1"
    assert requests_of(made)[0]["url"] == "/x?q=1"


def test_a_response_in_base_64_gives_values_too():
    first = answered("00.0", "http://a.test/", content={
        "mimeType": "application/json", "encoding": "base64", "text": base64.b64encode(b'{"t": "abc12345"}').decode()
    })  # fmt: skip
    assert requests_of(first, entry("01.0", "http://a.test/?t=abc12345"))[1]["url"] == "/?t=${t}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"PK\x03\x04 zip", "this is compressed — unpack it"),
        (b"\x1f\x8b gzip", "this is compressed — unpack it"),
        (b'{"log": {"entries": [{"time": 1' + b"0" * 5000 + b"}]}}", "this is not JSON"),
    ],
)
def test_a_file_in_another_form_is_one_clear_message(content: bytes, expected: str):
    with pytest.raises(UsageError, match=expected):
        plan_of(content, "s.har")


def test_a_recording_whose_plan_would_be_too_long_says_so():
    data = {"mimeType": "text/plain", "text": "x" * check.BYTES_MAX}
    with pytest.raises(UsageError, match=r"its plan would have \d+ bytes, and 4194304 are the most — record a shorter"):
        plan_of(har(entry("00.0", "http://a.test/", method="POST", data=data)), "s.har")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_recording_is_read_in_the_encoding_that_a_shell_gave_it(encoding: str):
    assert plan_of(har(entry("00.0", "http://a.test/ä")).encode(encoding), "s.har").hosts == {"a.test": 1}


# Values


def simple_sources(exchanges, sent_by):
    """What `correlate` must find, by looking at everything each time."""
    found = {}
    for number, values in enumerate(sent_by):
        for value in values:
            for earlier in range(number):
                if value in sent_by[earlier]:
                    break
                if re.search(rf"(?<![^\W_]){re.escape(value)}(?![^\W_])", exchanges[earlier].received):
                    found.setdefault((number, value), earlier)
                    break
            else:
                continue
            if (source := next((s for (n, v), s in found.items() if v == value), None)) is not None:
                found.setdefault((number, value), source)
    return found


VALUES = st.sampled_from(["tok-12345678", "12345678", "tok-1234567", "abc_99999999", "a1b2c3d4e5", "99999999"])


@given(
    st.lists(
        st.tuples(VALUES | st.none(), st.lists(VALUES, max_size=3), st.sampled_from(['"{}"', "<x='{}'>", "/{}/"])),
        max_size=7,
    )
)
def test_values_are_found_where_a_slow_search_finds_them(parts: list):
    exchanges = [
        Exchange(f"http://a/{value or ''}", (), None, " ".join(form.format(one) for one in received), ())
        for value, received, form in parts
    ]
    result = correlate(exchanges)
    uses = {(number, use.value): use.source for number, uses in result.uses.items() for use in uses}
    assert uses == simple_sources(exchanges, [[value] if value else [] for value, _, _ in parts])


def test_a_long_recording_takes_time_in_proportion_to_its_length():
    def cpu_s(number: int) -> float:
        entries = [
            entry(
                "00.0", f"http://a.test/{value(at)}?s=a1b2c3d4{at}",
                received=json.dumps([{"id": f"{value(at + 1)}", "text": "x" * 200}] * 20),
            )
            for at in range(number)
        ]  # fmt: skip
        text = har(*entries)
        begun_s = time.process_time()
        assert f"{number - 1} × a value of an earlier response" in plan_of(text, "s.har").notes[-1]
        return time.process_time() - begun_s

    def value(at: int) -> str:
        return hashlib.md5(str(at).encode(), usedforsecurity=False).hexdigest()[:12]

    # Quadratic time would be sixteen times as long.
    assert cpu_s(1200) < 9 * max(cpu_s(300), 0.05)


# Every form at once


KINDS = ("text/html; charset=utf-8", "application/json", "x-unknown", "", "text/event-stream", "image/png")
RESPONSES = ('{"id": "abc12345"}', "<input name=t value=abc12345>", "eyJpZCI6ImFiYzEyMzQ1In0=", None)


def program_form(name: str) -> st.SearchStrategy[dict]:
    """Entries as a program writes them, with its own keys."""
    own = {
        "chromium": {
            "_fromCache": st.sampled_from(["memory", "disk", "prefetch"]),
            "_resourceType": st.sampled_from(
                ["document", "xhr", "fetch", "websocket", "eventsource", "ping", "preflight"]
            ),
            "_priority": st.sampled_from(["High", None]),
            "_webSocketMessages": st.just([{"type": "send", "time": 1, "opcode": 1, "data": "x"}]),
        },
        "firefox": {"cache": st.sampled_from([{}, {"afterRequest": None}]), "_securityState": st.just("secure")},
        "safari": {"_fetchType": st.sampled_from(["Network Load", "Memory Cache", "Disk Cache", "Service Worker"])},
        "playwright": {key: st.booleans() for key in ("_wasAborted", "_wasFulfilled", "_wasContinued", "_apiRequest")},
        "mitmproxy": {"serverIPAddress": st.just("127.0.0.1")},
        "charles": {"comment": st.just("")},
    }[name]
    status = st.sampled_from([200, 200, 204, 301, 302, 303, 304, 307, 308, 404, 500, 0, -1, 101])
    response = {
        "statusText": st.sampled_from(["OK", "", None, "Internal Redirect"]),
        "headers": st.lists(st.sampled_from([
            {"name": "Location", "value": "/b"}, {"name": "location", "value": "http://other.test/"},
            {"name": "set-cookie", "value": "a=1\nb=2"}, {"name": "Non-Authoritative-Reason", "value": "HSTS"},
            {"name": ":status", "value": "200"},
        ]), max_size=2),
        "content": st.fixed_dictionaries({}, optional={
            "mimeType": st.sampled_from(KINDS), "text": st.sampled_from(RESPONSES),
            "encoding": st.just("base64"),
        }),
        "redirectURL": st.sampled_from(["", "/b", "http://a.test/b", "http://other.test/", None]),
        "_error": st.sampled_from([None, "net::ERR_ABORTED"]), "_transferSize": st.sampled_from([0, 99]),
        "_charlesStatus": st.sampled_from(["COMPLETE", "EXCEPTION"]), "_failureText": st.none(),
        "_fetchedViaServiceWorker": st.booleans(),
        "_serviceWorkerResponseSource": st.sampled_from(["network", "cache-storage"]),
    }  # fmt: skip
    params = st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b", '{"q": 1}', ""]) | st.text(max_size=4)},
            optional={
                "value": st.text(max_size=6) | st.none(),
                "fileName": st.just("a.png"),
                "contentType": st.text(max_size=4),
            },
        ),
        max_size=3,
    )
    data = st.fixed_dictionaries({}, optional={
        "mimeType": st.sampled_from([FORM, FILES, "application/json", "", "text/plain;charset=UTF-8"]),
        "text": st.sampled_from(["a=1&b=%20", "a=%zz", '{"a": "abc12345"}', "YT0x", None]) | st.text(max_size=8),
        "params": params, "encoding": st.just("base64"), "_file": st.just("x.bin"),
    })  # fmt: skip
    request = st.fixed_dictionaries(
        {
            "method": st.sampled_from(["GET", "GET", "POST", "PUT", "OPTIONS", "CONNECT", "post"]),
            "url": st.sampled_from([
                "http://a.test/", "http://a.test/b", "https://a.test/abc12345?x=1", "http://u:p@ä.test/#x", "http://[::1]/",
                "a.test:443", "wss://a.test/", "blob:http://a.test/1", "http://a.test/\ud83d", "http://a.test/{{ x }}",
            ]),
            "headers": st.lists(st.sampled_from([
                {"name": ":authority", "value": "a.test"}, {"name": "Cookie", "value": "a=1; c"},
                {"name": "Content-Type", "value": FILES}, {"name": "accept", "value": "x"},
                {"name": "Accept", "value": "y"}, {"name": "Content-Length", "value": "9"},
                {"name": "X", "value": "a\r\nb"},
            ]), max_size=3),
        },
        optional={"postData": data, "bodySize": st.sampled_from([-1, 0, 9]), "queryString": params, "cookies": params},
    )  # fmt: skip
    return st.fixed_dictionaries(
        {
            "startedDateTime": st.integers(0, 59).map(lambda s: f"2026-01-05T10:00:{s:02}.{s:03}Z"),
            "time": st.sampled_from([0, 20, -1, 70_000, 12.5]),
            "request": request,
            "response": st.fixed_dictionaries({"status": status}, optional=response),
        },
        optional={"pageref": st.sampled_from(["page_1", "page_2", ""])} | own,
    )


PROGRAMS = ("chromium", "firefox", "safari", "playwright", "mitmproxy", "charles")


@pytest.mark.long
@settings(deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "150")))
@given(
    st.sampled_from(PROGRAMS).flatmap(lambda name: st.tuples(st.just(name), st.lists(program_form(name), max_size=6)))
)
def test_a_recording_of_any_program_is_accounted_for_entry_by_entry(made: tuple[str, list]):
    """Each entry is a request of the plan, or counted in a note; the plan's text says what its values are."""
    name, entries = made
    content = json.dumps({"log": {"creator": {"name": name.title()}, "entries": entries}})
    said = ""
    try:
        result = plan_of(content, "s.har")
    except UsageError as error:
        said = str(error)
    if said:
        assert sum(int(number) for number in re.findall(r"(\d+) × (?!a )", said)) == len(entries)
        return
    assert decode(result.text.encode(), "plan.yaml", larger=64).data == result.plan
    loaded = check.loads(result.text.encode(), "plan.yaml", Path(__file__).parent)
    program(loaded)
    # Notes about a part of a request begin with 'a', and with 'an' only one about a request.
    counted = [int(number) for note in result.notes for number in re.findall(r"^(\d+) × (?!a )", note)]
    assert sum(result.hosts.values()) + sum(counted) == len(entries)
