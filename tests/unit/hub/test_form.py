"""The spawn form: what it offers, and that it can be used without sight or mouse."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from singularity_spawner.form import ClusterView, cluster_view, render
from singularity_spawner.options import TIERS, ServerOptions


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "input":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "tags are nested properly"

    def handle_data(self, data):
        self.text += data

    def all(self, tag, **attrs):
        return [a for t, a in self.elements if t == tag and attrs.items() <= a.items()]


BUSY = ClusterView(8, 1, 2, ("cpu",), 4)
TWO_AT_BASIC = ServerOptions("basic", 2)


def page(cluster=BUSY, chosen=TWO_AT_BASIC, **kwargs):
    html = render(chosen, cluster=cluster, max_devices=kwargs.pop("max_devices", 64), **kwargs)
    parsed = Page(html)
    assert not parsed.open
    return parsed


def test_every_tier_is_offered_with_its_meaning_and_one_is_chosen():
    form = page()
    radios = form.all("input", type="radio", name="tier")
    assert [radio["value"] for radio in radios] == ["premium", "standard", "basic"]
    assert [radio["value"] for radio in radios if "checked" in radio] == ["basic"]
    for tier in TIERS:
        assert tier.meaning in form.text


def test_every_field_has_a_label_and_its_help():
    form = page()
    ids = {attrs["id"] for _, attrs in form.elements if "id" in attrs}
    labels = {label["for"] for label in form.all("label")}
    for field in form.all("input"):
        assert field["id"] in labels
        assert set(field["aria-describedby"].split()) <= ids
    assert form.all("legend"), "the tiers are a named group"
    assert len(ids) == sum("id" in attrs for _, attrs in form.elements), "ids are unique"


def test_devices_are_limited_by_cluster_and_deployment():
    (field,) = page().all("input", name="devices")
    assert (field["min"], field["max"], field["value"]) == ("1", "4", "2")
    (field,) = page(max_devices=1).all("input", name="devices")
    assert (field["max"], field["value"]) == ("1", "1")
    (field,) = page(cluster=ClusterView(0, 0)).all("input", name="devices")
    assert field["max"] == "64", "nobody knows what there is"


@pytest.mark.parametrize(("elastic", "most"), [(False, 3), (True, 5)])
def test_one_notebook_sees_what_one_node_has_unless_it_is_elastic(elastic, most):
    nodes = ("a", "a", "b", "b", "b")
    devices = [{"node": node, "type": "cpu", "session": None} for node in nodes]
    view = cluster_view({"devices": devices, "waiting": {}}, elastic)
    assert (view.devices, view.free, view.largest) == (5, 5, most)
    assert cluster_view({"devices": [], "waiting": {}}, elastic).largest == 0


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (ClusterView(4, 1, 2, ("cpu",)), "1 of 4 cpu devices free now, 2 notebooks waiting."),
        (ClusterView(1, 1), "1 of 1 accelerator device free now."),
        (ClusterView(2, 0, 1, ("cpu", "cuda")), "0 of 2 cpu and cuda devices free now, 1 notebook"),
        (None, "does not answer just now"),
    ],
)
def test_free_devices_are_said(cluster, says):
    assert says in page(cluster).text


def test_tiers_that_are_not_allowed_are_not_offered():
    form = page(allowed_tiers=["basic"])
    assert [radio["value"] for radio in form.all("input", type="radio")] == ["basic"]


def test_what_the_cluster_says_is_escaped():
    html = render(ServerOptions("basic", 1), cluster=ClusterView(1, 1, 0, ("<b>",)), max_devices=1)
    assert "<b>" not in html
