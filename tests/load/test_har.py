"""A browser's recording becomes a plan that can be carried out, or one clear message."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.errors import UsageError
from partywall.load import plan
from partywall.load.compiling import program
from partywall.load.correlation import Exchange, Response
from partywall.load.recorded import plan_of


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
    return result, plan.loads(result.text.encode(), "plan.yaml", Path(__file__).parent)


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
    program(plan.loads(result.text.encode(), "plan.yaml", Path(__file__).parent))


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
