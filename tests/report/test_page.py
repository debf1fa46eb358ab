"""The script that draws charts is packed once, and pages come out without a cache too."""

import vl_convert

from partywall.report import page


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
