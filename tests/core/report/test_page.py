"""The script that draws charts is packed once, and pages come out without a cache too."""

import pytest
import vl_convert

from partywall.core.report import page


def test_the_script_is_packed_once_and_kept(monkeypatch, tmp_path):
    packed = []
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda text: packed.append(text) or "a</script>é")
    scripts = []
    for _ in range(2):
        page.vega.cache_clear()
        scripts.append(page.vega())
    page.vega.cache_clear()
    assert (len(packed), scripts) == (1, ["a<\\/script>é"] * 2)


def test_where_nothing_can_be_kept_the_script_is_packed_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda _: "script")
    page.vega.cache_clear()
    assert page.vega() == "script"
    page.vega.cache_clear()


@pytest.mark.parametrize("spoilt", [b"", b"\xff\xfe", b"0000\nalert(1)"], ids=["empty", "no text", "another script"])
def test_a_script_that_is_not_as_it_was_kept_is_packed_again(monkeypatch, tmp_path, spoilt):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda _: "script")
    for _ in range(2):
        page.vega.cache_clear()
        assert page.vega() == "script"
        (kept,) = tmp_path.iterdir()
        kept.write_bytes(spoilt)
    page.vega.cache_clear()
